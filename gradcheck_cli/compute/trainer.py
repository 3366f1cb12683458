"""What does a trainer do in each phase, and what does a candidate leave there?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch

from gradcheck_cli.compute.after import After
from gradcheck_cli.compute.aside import Settle
from gradcheck_cli.compute.attached import clear_flags
from gradcheck_cli.compute.calling import Calling, determinism
from gradcheck_cli.compute.equipment import equip
from gradcheck_cli.compute.found import Found, by_rows, snapshot
from gradcheck_cli.compute.gathered import Gradients, left, parameters_found
from gradcheck_cli.compute.handed import grad_output_of, x_of
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.kernels import Watch, unwatched
from gradcheck_cli.compute.lending import lent
from gradcheck_cli.compute.lent import guard_byte, guarded
from gradcheck_cli.compute.poison import POISON, filled
from gradcheck_cli.compute.provider import Delayed, Layer
from gradcheck_cli.compute.settings import kept
from gradcheck_cli.compute.stepping import Stepping, turn
from gradcheck_cli.compute.trial import a_tensor, on_trial
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import delivered_in, joined
from gradcheck_cli.records.observation import DATA, Buffer, Fill, Phase, Role
from gradcheck_cli.records.roles import part
from gradcheck_cli.records.sequence import Turn, reused


class Trainer:
    """One layer and its parameters from the loading of the weights on; each step says what it left where."""

    def __init__(self, case: Case, layer: Layer, inputs: Inputs, fill: Fill, watch: Watch = unwatched) -> None:
        self.case, self.layer, self.inputs, self.fill, self.watch = case, layer, inputs, fill, watch
        self.device, self.byte, self.fits = inputs.weight.device, guard_byte(fill), True
        self.settings: list[str] = []  # of the process, that the candidate has left otherwise
        self.own = equip(case, layer, inputs, self._trial)
        with self._trial("build of what is called"):
            self.calling = Calling(case, layer, self.device, fill)
            self._capture()
        with self._trial("reading the parameters before the first microbatch"):
            around = list(self.own.main_grads.values())
            self.loans = lent(case, layer, inputs, self.own.held, self.own.attached, around)
            self.loans.settings = self.settings
            self.stepping = Stepping(case, self.own.held.weights, inputs, fill) if case.optimizer != "none" else None
        self.x: dict[int, torch.Tensor] = {}
        self.y: dict[int, torch.Tensor] = {}
        self.probs: dict[int, torch.Tensor] = {}

    def take(self, turn: Turn) -> Iterable[After]:
        """One phase, and what is there after it."""
        if turn.phase == "move":
            return [self.moved()]
        if turn.phase == "backward":
            return self.backward(turn.microbatches)
        if turn.phase == "backward_dw":
            return [self.backward_dw(turn.microbatches)]
        one = {"forward": self.forward, "inference": self.inference, "step": self.step}[turn.phase]
        return [one(turn.microbatches[0])]

    def moved(self) -> After:
        """What is left of the parameters by the move that the layer was equipped with."""
        with self._trial("reading the parameters after the move"):
            seen = self.loans.seen()
        return After(0, "move", [], self.loans.changed(seen, 0))

    def forward(self, k: int) -> After:
        """The output of microbatch k."""
        case, splits = self.case, self.case.splits(k)
        if reused(case, k):
            return self._again(k)
        x, whole = x_of(case, self.inputs.x[k], self.byte)
        # No leaf, as the output of a layer before is none: a gradient put into the .grad of this one is lost.
        ahead = x.tensor.requires_grad_(not case.frozen_input).view_as(x.tensor)
        self.loans.lend(x, whole, ahead, k)
        self._scale(k)
        gradients = Gradients.of(self.own.held)
        with self._candidate("forward", k, f"forward of microbatch {k}", [x.tensor]) as settle:
            y = a_tensor(self.calling.forward(ahead, splits))
            settle([y])
        self.x[k], self.y[k] = x.tensor, y
        return self._output(k, gradients)

    def _again(self, k: int) -> After:
        """The output of the microbatch before, whose graph a backward went through: another is to come."""
        self.x[k], self.y[k] = self.x[k - 1], self.y.pop(k - 1)
        self.x[k].grad = None
        return self._output(k, Gradients.of(self.own.held))

    def _output(self, k: int, gradients: Gradients) -> After:
        """What a forward returned for microbatch k."""
        case, y = self.case, self.y[k]
        splits, shape = case.splits(k), (case.rows(k), *part(case, "fprop"))
        with self._trial(f"reading the output of microbatch {k}"):
            fprop, self.fits = by_rows("fprop", "output", y, splits, shape, self.device), tuple(y.shape) == shape
            seen = self.loans.seen(gradients.changed())
            self.loans.expect(y, k)
        return After(k, "forward", [snapshot(fprop)], self.loans.changed(seen, k), self.calling.effective())

    def _scale(self, k: int) -> None:
        """Hand a chain its probabilities, as a router that learns does: no leaf, and in want of a gradient."""
        if not self.own.chain:
            return
        probs = guarded("probs", self.inputs.probs[k], self.byte)
        self.probs[k] = probs.tensor.requires_grad_()
        ahead = self.probs[k].view_as(self.probs[k])
        self.loans.lend(probs, self.inputs.probs[k], ahead, k)
        with self._trial(f"taking the probabilities of microbatch {k}"):
            self.own.chain.scale_by(ahead)

    def inference(self, k: int) -> After:
        """An evaluation before the backward of microbatch k, of tokens that no gradient may come from."""
        other, _ = x_of(self.case, -self.inputs.x[k], self.byte)
        gradients = Gradients.of(self.own.held)
        with self._trial(f"an inference before the backward of microbatch {k}"):
            self.calling.infer(other.tensor, self.case.splits(k))
        with self._trial(f"reading what the inference before the backward of microbatch {k} has left"):
            seen = self.loans.seen(gradients.changed())
        return After(k, "inference", [], self.loans.changed(seen, k))

    def backward(self, step: tuple[int, ...]) -> list[After]:
        """The gradients of each x and, unless they are left to backward_dw, of the parameters."""
        case, grads, said = self.case, [], f"backward of microbatch {joined(step)}"
        kept = case.retain_graph and not reused(case, step[0])
        # What a wgrad that is left to backward_dw must leave as it is.
        before = self.own.main_grads["wgrad"].tensor.clone() if case.delay_wgrad_compute else None
        self.loans.release(step)
        clear_flags(case, self.own.held)
        for k in step:
            given, whole = grad_output_of(case, self.inputs.grad_output[k], self.byte)
            self.loans.lend(given, whole, given.tensor, k)
            grads.append(given.tensor)
        outputs = [self.y[k] if kept else self.y.pop(k) for k in step]
        with self._candidate("backward", step[0], said, [*grads, *self._added_to("backward")]) as settle:
            torch.autograd.backward(outputs, grads, retain_graph=kept)
            settle([*self._left(), *(x.grad for k in step if (x := self.x[k]).grad is not None)])
        with self._trial(f"reading the gradients after the {said}"):
            found = {k: self._by_token(k) for k in step}
            parameters = self._parameters()
            if before is not None:
                parameters = [replace(one, before=before) for one in parameters if one.buffer == "main_grad"]
            found[step[-1]] += parameters
            seen = self.loans.seen()
            for k in () if kept else step:  # this x gets another gradient, in the place of this one
                self.loans.keep(self.x[k], k)
        changed = {step[-1]: self.loans.changed(seen, step[-1])}
        return [After(k, "backward", [snapshot(one) for one in found[k]], changed.get(k, [])) for k in step]

    def backward_dw(self, step: tuple[int, ...]) -> After:
        """The gradients of the parameters that the backward left open, use by use."""
        said, last = f"backward_dw of microbatch {joined(step)}", step[-1]
        with self._candidate("backward_dw", step[0], said, self._added_to("backward_dw")) as settle:
            for _ in step:
                cast("Delayed", self.layer).backward_dw()
            settle(self._left())
        with self._trial(f"reading the gradients after the {said}"):
            parameters, seen = self._parameters(), self.loans.seen()
        return After(last, "backward_dw", [snapshot(one) for one in parameters], self.loans.changed(seen, last))

    def step(self, k: int) -> After:
        """The weights after a step of the optimizer; then the next biases, and on integers the weights, are written."""
        assert self.stepping  # noqa: S101  the case has an optimizer
        with self._trial(f"step of the optimizer after microbatch {k}"):
            moved = snapshot(self.stepping.step())
            if self.fill != "normal":
                self.stepping.write(self.inputs.weight_of(k + 1))
            self.stepping.zero()
            turn(self.case, self.own.held, bias := self.inputs.bias_of(k + 1))
        with self._trial(f"reading the weights after the step after microbatch {k}"):
            held = torch.stack([one.tensor for one in self.stepping.found().experts if one.tensor is not None]).clone()
            self.loans.rewrite("weight", held)
            if bias is not None:
                self.loans.rewrite("bias", bias)
            seen = self.loans.seen()
        due = moved.before if self.fill == "normal" else None
        return After(k, "step", [moved], self.loans.changed(seen, k), weight=due)

    def _capture(self) -> None:
        """Let each list of splits be captured, and set back what the backwards of that have left."""
        if self.case.cuda_graph == "none":
            return
        for k in range(self.case.microbatches):
            x, _ = x_of(self.case, self.inputs.x[k], self.byte)
            self.calling.capture(x.tensor.requires_grad_(not self.case.frozen_input), self.case.splits(k))
        for role, one in self.own.main_grads.items():
            one.tensor.copy_(self.inputs.prefill_of(role))
            self.own.hooks[role].taken()
        clear_flags(self.case, self.own.held)

    def _by_token(self, k: int) -> list[Found]:
        """The gradients of x and of a chain's probabilities."""
        given: list[tuple[Role, Buffer, torch.Tensor]] = [("dgrad", "input.grad", self.x[k])]
        given += [("pgrad", "probs.grad", self.probs[k])] if self.probs else []
        splits = self.case.splits(k)
        return [by_rows(role, name, one.grad, splits, tuple(one.shape), self.device) for role, name, one in given]

    def _added_to(self, phase: Phase) -> list[torch.Tensor]:
        """The buffers that a phase may add a wgrad to."""
        own = self.case.fuse_wgrad_accumulation and phase == delivered_in(self.case)
        return [one.tensor for one in self.own.main_grads.values()] if own else []

    def _parameters(self) -> list[Found]:
        return parameters_found(self.case, self.own, self.device)

    def _left(self) -> list[torch.Tensor]:
        return [*left(self.own.held), *(one.tensor for one in self.own.main_grads.values())]

    @contextmanager
    def _candidate(self, phase: Phase, k: int, said: str, given: Sequence[torch.Tensor]) -> Iterator[Settle]:
        """Around what the candidate itself computes, of which `given` is new to it."""
        with (
            self._trial(said),
            self.watch(phase),
            filled(POISON[self.fill], self.device),
            self.calling.aside(phase, k, given) as settle,
        ):
            yield settle

    @contextmanager
    def _trial(self, during: str) -> Iterator[None]:
        trial = on_trial(f"{during}, {DATA[self.fill]}", self.device, captured=self.case.cuda_graph != "none")
        with trial, determinism(self.case), kept(self.settings):
            yield
