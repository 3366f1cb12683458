"""What did each run of a case leave? The first is measured, and each later one compared with it bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch

from gradcheck_cli.compute.after import After
from gradcheck_cli.compute.found import Found, Held
from gradcheck_cli.compute.hypotheses import Hypotheses
from gradcheck_cli.compute.lent import WORDS
from gradcheck_cli.compute.measure import figure, measure
from gradcheck_cli.compute.mutants import mutated
from gradcheck_cli.compute.reference import Reference
from gradcheck_cli.compute.stage import Stage
from gradcheck_cli.compute.stepping import after_step
from gradcheck_cli.compute.trial import CandidateRaised
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import due, dummy_of
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import INFINITE, Buffer, Phase, PhaseSeen, Repeated, Role, SlotSeen
from gradcheck_cli.records.roles import WEIGHTS

Signature = tuple[object, ...]


class Runs:
    """The runs of one case on one fill."""

    def __init__(self, job: Job, reference: Reference) -> None:
        self._job, self._reference = job, reference
        self._later: dict[int, Reference] = {}  # run -> what is right since the step of an optimizer, on random data
        self._first: dict[tuple[int, Phase], After] = {}
        self._left: dict[Role, dict[int, list[Signature]]] = {}  # role -> run -> what it left, in order
        self._ulps: dict[Role, dict[int, float]] = {}  # role -> expert -> the largest difference

    def seen(self, run: int, after: After) -> list[PhaseSeen]:
        """One phase, measured; of a later run nothing where it is bit for bit what the first run left."""
        phases = self._seen(run, after)
        if after.weight is not None:
            self._later[run] = after_step(self._job.case, self._right(run), after.microbatch, after.weight)
        return phases

    def _right(self, run: int) -> Reference:
        return self._later.get(run, self._reference)

    def _seen(self, run: int, after: After) -> list[PhaseSeen]:
        if run == 0:
            return self._of_the_first(after)
        first = self._first.get((after.microbatch, after.phase))
        if first is None:  # the first ended early, at an output that no gradient fits
            return [self._measured(after, run)]
        differs = [self._compared(run, after, was, now) for was, now in zip(first.found, after.found, strict=True)]
        if not any(differs) and first.disturbed == after.disturbed:
            return []
        return [self._measured(after, run)]

    def told(self) -> list[Repeated]:
        """Each role of a case that repeats."""
        return [self._repeated(role, runs) for role, runs in self._left.items()]

    def _of_the_first(self, after: After) -> list[PhaseSeen]:
        k, phase, found = after.microbatch, after.phase, after.found
        phases = [self._measured(after, 0)]
        if k == self._job.case.microbatches - 1 or phase == "step":
            phases += [one for stage in staged(self._job, self._right(0), k, found) for one in mutated(stage, phase)]
        if self._job.case.repeat > 1:
            self._first[k, phase] = after
            for one in found:
                self._remember(0, one.role, self._signatures(after, one))
        return phases

    def _measured(self, after: After, run: int) -> PhaseSeen:
        stages = staged(self._job, self._right(run), after.microbatch, after.found)
        slots = [slot for stage in stages for buffer in stage.found for slot in measured(stage, buffer)]
        return PhaseSeen(
            repeat=run, microbatch=after.microbatch, phase=after.phase, slots=slots, disturbed=after.disturbed
        )

    def _compared(self, run: int, after: After, was: Found, now: Found) -> bool:
        """Whether a buffer differs from that of the first run, noted with how much."""
        before, own = self._signatures(after, was), self._signatures(after, now)
        self._remember(run, now.role, own)
        for i in (i for i, (one, other) in enumerate(zip(before, own, strict=True)) if one != other):
            far = self._ulps.setdefault(now.role, {})
            far[i] = max(far.get(i, 0.0), ulps(was.experts[i].tensor, now.experts[i].tensor))
        return before != own

    def _remember(self, run: int, role: Role, signatures: list[Signature]) -> None:
        self._left.setdefault(role, {}).setdefault(run, []).extend(signatures)

    def _signatures(self, after: After, found: Found) -> list[Signature]:
        """What must be the same in every run, expert by expert; of a dummy beside main_grad not what it holds."""
        experts = enumerate(found.experts)
        return [signature(held, told=not dummy(self._job.case, found, i, after.microbatch)) for i, held in experts]

    def _repeated(self, role: Role, runs: dict[int, list[Signature]]) -> Repeated:
        results = [tuple(runs.get(run, ())) for run in range(self._job.case.repeat)]
        far = self._ulps.get(role, {})
        worst = max(far, key=lambda i: far[i], default=None)
        return Repeated(
            role=role,
            repeats=len(results) - 1,
            differing=sum(result != results[0] for result in results),
            distinct=len(set(results)),
            largest_ulps=max(far.values(), default=0.0),
            worst="" if worst is None else f"{role}[{worst}]",
            experts=sorted(far),
        )


@contextmanager
def in_run(run: int) -> Iterator[None]:
    """What a later run of a case raises says which it was."""
    try:
        yield
    except CandidateRaised as error:
        if run:
            error.seen = msgspec.structs.replace(error.seen, during=f"{error.seen.during}, repeat {run}")
        raise


def signature(held: Held, *, told: bool = True) -> Signature:
    """Equal for two buffers where all that is seen of them is, bit for bit; `told`: their elements as well."""
    elements = digest(held.tensor) if told and held.tensor is not None else b""
    return held.present, held.shape, held.dtype, held.added_flag, held.replaced, held.hooks, elements


def digest(tensor: torch.Tensor) -> bytes:
    """16 bytes of a tensor's own; every NaN is the same one."""
    same = tensor.masked_fill(tensor.isnan(), torch.nan).contiguous().cpu()
    return hashlib.blake2b(same.view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


def ulps(was: torch.Tensor | None, now: torch.Tensor | None) -> float:
    """The largest difference in units in the last place; INFINITE where one is not finite, or cannot be compared."""
    if was is None or now is None or (was.shape, was.dtype) != (now.shape, now.dtype):
        return INFINITE
    if was.isfinite().logical_xor(now.isfinite()).any() or was.isnan().logical_xor(now.isnan()).any():
        return INFINITE
    one, other = _place(was), _place(now)
    across = one.abs().double() + other.abs().double()  # more than 64 bits may hold
    apart = torch.where((one < 0) == (other < 0), (one - other).abs().double(), across).masked_fill(was.isnan(), 0.0)
    return figure(float(apart.max())) if apart.numel() else 0.0


def _place(tensor: torch.Tensor) -> torch.Tensor:
    """Which number it is among all of its dtype in their order; both zeros are the same."""
    word = WORDS[tensor.element_size()]
    bits = tensor.contiguous().view(word)
    return torch.where(bits < 0, -(bits & torch.iinfo(word).max).long(), bits.long())


def dummy(case: Case, found: Found, expert: int, k: int) -> bool:
    """Whether it is a dummy beside main_grad, of which nobody asks what it holds."""
    if found.role not in WEIGHTS or found.buffer != "grad" or dummy_of(case) != "any":
        return False
    where = due(case, expert, k)
    return where is not None and where.buffer == "main_grad"


def staged(job: Job, reference: Reference, k: int, found: list[Found]) -> list[Stage]:
    """What was found after one phase, role by role."""
    roles = dict.fromkeys(one.role for one in found)
    return [Stage(job, reference, role, k, {one.buffer: one for one in found if one.role == role}) for role in roles]


def measured(stage: Stage, buffer: Buffer) -> list[SlotSeen]:
    """One role in one buffer, measured against all it may hold."""
    found, reference, rounding = stage.found[buffer], stage.reference, stage.job.rounding[stage.role]
    # On exact data nothing rounds, and on random data these roundings are below what is told apart.
    rounded = reference.fill == "range" and (buffer != "main_grad" or rounding.rounds_before_adding)
    wrong = Hypotheses(stage.job.case, reference, stage.role, buffer, stage.microbatch, rounded)

    def explain(expert: int, held: torch.Tensor) -> dict[str, float]:
        return {} if dummy(stage.job.case, found, expert, stage.microbatch) else wrong(expert, held)

    return measure(
        found,
        stage.right(buffer),
        stage.sizes,
        rounding.lambda_,
        bounded=reference.fill == "normal",
        shown=stage.shown(buffer),
        explain=explain if found.before is None else None,
    )
