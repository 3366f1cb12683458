"""Does gradcheck notice? The torch loop with one fault, which is its api: to be judged, not to be trained with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gradcheck_cli.compute.faults.chance import CHANCE
from gradcheck_cli.compute.faults.deliveries import DELIVERIES, Delivered
from gradcheck_cli.compute.faults.endings import END, EndingLayer
from gradcheck_cli.compute.faults.gates import gate
from gradcheck_cli.compute.faults.scene import Scene
from gradcheck_cli.compute.faults.values import VALUES
from gradcheck_cli.compute.faults.weights import kept_apart, leave, multiplied, spoil
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.compute.providers.torch_loop import LoopLayer
from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import due, dummy_of, paired, since_step, steps_of
from gradcheck_cli.records.observation import Role


@dataclass
class Held:
    """What a parameter would rightly hold: of `.grad` and main_grad what a layer without the fault leaves there."""

    steps: list[torch.Tensor] = field(default_factory=list)
    prefill: torch.Tensor | None = None
    grad: torch.Tensor | None = None
    main_grad: torch.Tensor | None = None


@dataclass
class Use:
    """What one forward was given, and what its backward brings: grad_output, and the parameters' step."""

    microbatch: int
    x: torch.Tensor  # before its gradient goes through a gate
    w: torch.Tensor
    g: torch.Tensor = field(default_factory=torch.Tensor)
    step: torch.Tensor = field(default_factory=torch.Tensor)


class FaultLayer(LoopLayer):
    """The loop candidate with one mutant's fault built in."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.case, self.mutant = case, MUTANTS[case.api]
        self.delayed = self.delayed and self.mutant.fault.kind != "early"
        self.uses: list[Use] = []
        self.earlier: list[list[torch.Tensor]] = []
        self.held: dict[int, Held] = {}
        if self.mutant.fault.kind == "delivery" and self.mutant.role != "dgrad":
            own = self._weights if self.mutant.role == "wgrad" else self._biases
            for i, parameter in enumerate(own):
                # The candidate's own hook would deliver first.
                parameter._post_accumulate_grad_hooks = None  # noqa: SLF001  torch offers no other way to drop it
                parameter.register_post_accumulate_grad_hook(lambda parameter, i=i: self._deliver(parameter, i))

    def _spoil_hooks(self) -> None:
        """The hooks that a trainer has put there: dropped, or called once more."""
        name = self.mutant.fault.name
        for parameter in self._weights if name.startswith("hook") and not self.uses and not self.delayed else ():
            hooks = parameter._backward_hooks or {}  # noqa: SLF001  torch offers no other way to find them
            if name == "hook_lost":
                hooks.clear()
            else:
                for hook in list(hooks.values()):
                    parameter.register_hook(hook)

    def forward(self, x: torch.Tensor, m_splits: tuple[int, ...]) -> torch.Tensor:
        """x (T, K) -> y (T, N)."""
        self._spoil_hooks()
        spoil(self.mutant.fault.name, self.case, self._weights, len(self.uses))
        used = self.used()
        weight = used[0] if self.packed else torch.stack(used)
        use = Use(len(self.uses), x, multiplied(used, self._weights))
        if torch.is_grad_enabled():  # what is run without a graph is no microbatch, or one that is yet to be run again
            self.uses.append(use)
        weights = gate(weight, lambda wgrad: self._kept(use, "wgrad", wgrad), use.w).unbind()
        biases: Any = [None] * self.experts
        if len(self._biases):
            bias = torch.stack(self.bias_of_each())
            biases = gate(bias, lambda bgrad: self._kept(use, "bgrad", bgrad)).unbind()
        rows = gate(x[: sum(m_splits)], lambda dgrad: self._dgrad(use, dgrad)).split(list(m_splits))
        y = [torch.nn.functional.linear(r, w, b) for r, w, b in zip(rows, weights, biases, strict=True)]
        output = torch.cat(y)
        whole = gate(output, lambda g: self._keep_grad_output(use, g), self._altered(use, "fprop", output.detach()))
        return torch.nn.functional.pad(whole, (0, 0, 0, len(x) - sum(m_splits)))

    def load(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Copy weight (G, N, K) and bias (G, N) into the parameters, and what the fault keeps of them apart."""
        super().load(weight, bias)
        kept_apart(self.mutant.fault.name, self.case, self._weights)

    def backward_dw(self) -> None:
        """Nothing is left open by a layer that delivered early."""
        if self.mutant.fault.kind != "early":
            super().backward_dw()

    def _altered(self, use: Use, role: Role, right: torch.Tensor) -> torch.Tensor:
        """A result of this microbatch with the fault, if it is this role's."""
        if self.mutant.role != role or self.mutant.fault.kind != "value":
            return right
        splits = list(self.case.splits(use.microbatch))
        stored = list(right.split(splits) if role in ("fprop", "dgrad") else right)
        scene = Scene(
            case=self.case,
            role=role,
            microbatch=use.microbatch,
            x=use.x.detach(),
            weight=use.w,
            grad_output=use.g,
            bias=torch.stack([bias.detach() for bias in self.bias_of_each()]) if len(self._biases) else None,
            parts=[part.double() for part in stored],
            earlier=self.earlier,
            stored=stored,
            weight_before=self.uses[since - 1].w if (since := since_step(self.case, use.microbatch)) else None,
        )
        altered = VALUES[self.mutant.fault.name].altered(scene)
        self.earlier = [*self.earlier, list(scene.parts)]
        parts = [altered.get(i, part).to(right.dtype) for i, part in enumerate(scene.parts)]
        return torch.cat(parts) if role in ("fprop", "dgrad") else torch.stack(parts)

    def _dgrad(self, use: Use, right: torch.Tensor) -> torch.Tensor | None:
        if self.mutant.role == "dgrad" and self.mutant.fault.kind == "delivery":
            given = Delivered(
                expert=0, packed=True, fused=False, dtype=self.case.dtype, steps=[], prefill=None, grad=right
            )
            return DELIVERIES[self.mutant.fault.name](given).grad
        return self._altered(use, "dgrad", right)

    def _keep_grad_output(self, use: Use, g: torch.Tensor) -> torch.Tensor:
        use.g = g
        for i in self.held:  # a buffer of another shape or dtype cannot be added to
            (self._weights if self.mutant.role == "wgrad" else self._biases)[i].grad = None
        if self.mutant.fault.name.startswith("frozen") and self.mutant.fault.kind == "delivery":
            self._give_what_is_frozen(use)
        return g

    @torch.no_grad()
    def _give_what_is_frozen(self, use: Use) -> None:
        """A gradient for what asks for none, which autograd therefore passes by."""
        role, rows = self.mutant.role, list(self.case.splits(use.microbatch))
        pairs = list(zip(use.x.detach().double().split(rows), use.g.double().split(rows), strict=True))
        if role == "dgrad":
            given = torch.cat([g @ w.double() for (_, g), w in zip(pairs, use.w, strict=True)])
            base = use.x._base  # noqa: SLF001  the leaf that the trainer looks at, where x is a view of it
            parameters, steps = [use.x if base is None else base], [given]
        elif role == "wgrad":
            steps = [g.T @ x for x, g in pairs]
            parameters, steps = list(self._weights), [torch.stack(steps)] if self.packed else steps
        else:
            parameters, steps = list(self._biases), [g.sum(0) for _, g in pairs]
        for parameter, step in zip(parameters, steps, strict=True):
            if parameter.requires_grad:
                continue
            attached: torch.Tensor | None = getattr(parameter, "main_grad", None)
            right = Delivered(
                expert=0,
                packed=False,
                fused=False,
                dtype=self.case.dtype,
                steps=[step],
                prefill=None,
                grad=None,
                main_grad=attached,
                frozen=True,
            )
            leave(parameter, DELIVERIES[self.mutant.fault.name](right))

    def _kept(self, use: Use, role: Role, right: torch.Tensor) -> torch.Tensor:
        step = self._altered(use, role, right)
        if role == self.mutant.role:
            use.step = step
        return step

    @torch.no_grad()
    def _deliver(self, parameter: torch.Tensor, i: int) -> None:
        """Leave on a parameter what the fault makes of what it would rightly hold by now."""
        role, dtype = self.mutant.role, DTYPES[self.case.dtype]
        weight = role == "wgrad"
        fused, packed = self.fused and weight, self.packed and weight
        last = len(self.uses) - 1
        now = next(step for step in steps_of(self.case) if last in step)
        steps = [self.uses[k].step if packed else self.uses[k].step[i] for k in now]
        if since_step(self.case, last) in now:  # what was held before was zeroed
            self.held.pop(i, None)
        own = self.held.setdefault(i, Held())
        attached: torch.Tensor | None = getattr(parameter, "main_grad", None) if weight else None
        if own.prefill is None and attached is not None:
            own.prefill, own.main_grad = attached.clone(), attached.clone()
        where = due(self.case, i, last) if weight else None
        fresh = where is not None and where.since == last and not where.prefill and fused
        own.steps = [*([] if fresh else own.steps), *(step.double() for step in steps)]
        for step in steps:
            if fused and own.main_grad is not None:
                held = torch.zeros_like(own.main_grad) if fresh else own.main_grad
                own.main_grad = (held + step).to(held.dtype)
            elif not fused:
                own.grad = step.clone() if own.grad is None else (own.grad + step).to(dtype)
        given = DELIVERIES[self.mutant.fault.name](
            Delivered(
                expert=i,
                packed=packed,
                fused=fused,
                dtype=self.case.dtype,
                steps=own.steps,
                prefill=own.prefill,
                grad=own.grad,
                main_grad=own.main_grad,
                flag=fused if weight and hasattr(parameter, "grad_added_to_main_grad") else None,
                on_top=where is None or where.prefill,
                dummy=dummy_of(self.case),
                paired=paired(self.case, last),
                moved=(self.case.optimizer, self.case.moved) != ("none", "none"),
            )
        )
        leave(parameter, given)


def build(case: Case, device: torch.device) -> LoopLayer:
    """The layer whose fault is the case's api."""
    if case.api in CHANCE:
        return CHANCE[case.api](case, device)
    return EndingLayer(case, device) if case.api in END else FaultLayer(case, device)
