"""How does one case become one observation? Build, run, measure, for each fill."""

from __future__ import annotations

import pkgutil
import time
import warnings

from gradcheck_cli.compute.attached import layout
from gradcheck_cli.compute.found import Found
from gradcheck_cli.compute.hypotheses import Hypotheses
from gradcheck_cli.compute.kernels import Kernels, Watch
from gradcheck_cli.compute.machine import environment, no_memory, open_device, recorded_variables
from gradcheck_cli.compute.measure import measure
from gradcheck_cli.compute.mutants import mutated
from gradcheck_cli.compute.observe import observe
from gradcheck_cli.compute.poison import POISON, filled, poison
from gradcheck_cli.compute.provider import Builder, Layer
from gradcheck_cli.compute.reference import Reference, prepare
from gradcheck_cli.compute.stage import Stage
from gradcheck_cli.compute.trial import CandidateRaised, on_trial, warned, words
from gradcheck_cli.errors import HarnessError
from gradcheck_cli.records.effective import asked_of_the_forward
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import (
    DATA,
    FILLS,
    ROLES,
    Buffer,
    ChannelSeen,
    Fill,
    Observation,
    PhaseSeen,
    SlotSeen,
)

LARGEST = 2**63


class Engine:
    """Runs jobs on one device, in a process that has torch and the candidates imported."""

    def __init__(self, device: str, targets: list[str]) -> None:
        """Open the device and import every target; UsageError or HarnessError say what is wrong, and what to do."""
        self._variables = recorded_variables()
        self.device = open_device(device)
        self.builders: dict[str, Builder] = {target: imported(target) for target in targets}
        self._kernels = Kernels(self.device)

    def environment(self) -> Environment:
        """Where this process runs."""
        return environment(self.device, self._variables)

    def run(self, job: Job) -> Observation:
        """Observe one case; what the candidate raises becomes part of the observation.

        HarnessError where the reference or the measuring does not fit into memory: that is no word on the candidate.
        """
        try:
            return self._observed(job)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise HarnessError(f"no memory for the reference of {job.case}: {no_memory(self.device, error)}") from error

    def _observed(self, job: Job) -> Observation:
        began = time.perf_counter()
        case = job.case
        channels: list[ChannelSeen] = []
        effective: dict[str, str | int] = {}
        raised, watch = None, self._kernels.of(case)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                for fill in FILLS:
                    reference = prepare(case, fill, self.device)
                    channels.append(self._channel(job, fill, reference, effective, watch))
                    if channels[-1].phases:
                        watch = self._kernels.after(case, str(effective.get("path", "")))
            except CandidateRaised as error:
                raised = error.seen
        return Observation(
            case=str(case),
            attempt=job.attempt,
            ending="raised" if raised else "finished",
            channels=channels,
            mutants=job.mutants,
            effective=effective,
            kernels=self._kernels.seen(case, str(effective.get("path", "")), finished=raised is None),
            warnings=warned(caught),
            raised=raised,
            seconds=time.perf_counter() - began,
        )

    def _channel(
        self, job: Job, fill: Fill, reference: Reference, effective: dict[str, str | int], watch: Watch
    ) -> ChannelSeen:
        """One pass over the microbatches on one fill; fills in `effective` as soon as it is known."""
        case, phases = job.case, []
        poisoned = not reference.inapplicable and poison(POISON[fill], case, self.device)
        if not reference.inapplicable:
            with on_trial(f"build, {DATA[fill]}", self.device), filled(POISON[fill], self.device):
                layer: Layer = self.builders[job.target](case, self.device)
                as_built = layout(layer)
                note(effective, {**layer.effective(), **as_built})
            # Another layer than the one that was asked for may not even take these tensors.
            as_asked = as_built.items() <= case.axes().items()
            for k, phase, found, disturbed in observe(case, layer, reference.inputs, fill, watch) if as_asked else ():
                # A layer that does not say which path it took has not said that it took the one asked for.
                unsaid: dict[str, str | int] = dict.fromkeys(asked_of_the_forward(case, phase), "unknown")
                with on_trial(f"reading the layer after the {phase} of microbatch {k}, {DATA[fill]}", self.device):
                    note(effective, {**unsaid, **layer.effective(), **layout(layer)})
                stages = staged(job, reference, k, found)
                slots = [slot for stage in stages for buffer in stage.found for slot in measured(stage, buffer)]
                phases.append(PhaseSeen(microbatch=k, phase=phase, slots=slots, disturbed=disturbed))
                if k == case.microbatches - 1:
                    phases += [one for stage in stages for one in mutated(stage, phase)]
                if phase == "forward":  # what was measured has left other things behind, many of them zero
                    poisoned = poison(POISON[fill], case, self.device) and poisoned
        return ChannelSeen(
            fill=fill,
            inapplicable=reference.inapplicable,
            exponents={r: e for r in ROLES if (e := reference.exponents.get(r)) is not None and fill != "normal"},
            largest_scale=reference.largest_scale,
            limit=reference.limit,
            unrounded=list(reference.unrounded),
            poison=POISON[fill] if poisoned else "",
            phases=phases,
        )


def note(effective: dict[str, str | int], found: dict[str, str | int]) -> None:
    """Add what a layer is found to be; where it was something else before, both are kept: `legacy, then native`."""
    for name, value in found.items():
        name, value = words(name), plain(value)
        before = effective.setdefault(name, value)
        if value != before and not str(before).endswith(f"then {value}"):
            effective[name] = f"{before}, then {value}"


def plain(value: object) -> str | int:
    """A value as a record holds it, whatever type a candidate found it in: numpy.bool_(True) is 1."""
    value = value.item() if hasattr(value, "item") else value
    # A larger integer is none of the JSON that every reader understands.
    return int(value) if isinstance(value, int) and abs(value) < LARGEST else words(value)


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
    return measure(
        found,
        stage.right(buffer),
        stage.sizes,
        rounding.lambda_,
        bounded=reference.fill == "normal",
        shown=stage.shown(buffer),
        explain=wrong if found.before is None else None,
    )


def imported(target: str) -> Builder:
    """Import a provider's entry point; HarnessError names what could not be imported."""
    try:
        builder: Builder = pkgutil.resolve_name(target)
    except Exception as error:  # a broken installation may raise anything at import
        name = target.partition(":")[0].rpartition(".")[2]
        raise HarnessError(
            f"the candidate {name} cannot be imported: {type(error).__name__}: {error}\n"
            f"expected an installation that `python -c 'import torch'` and the candidate's own import accept; "
            f"`gradcheck doctor` says what is installed"
        ) from error
    return builder
