"""How does one case become one observation? Build, run, measure, for each fill."""

from __future__ import annotations

import pkgutil
import time
import warnings
from collections.abc import Iterator

from gradcheck_cli.compute.after import After
from gradcheck_cli.compute.attached import layout
from gradcheck_cli.compute.calling import determinism
from gradcheck_cli.compute.kernels import Kernels, Watch, unwatched
from gradcheck_cli.compute.machine import environment, no_memory, open_device, recorded_variables
from gradcheck_cli.compute.observe import observe
from gradcheck_cli.compute.poison import POISON, filled, poison
from gradcheck_cli.compute.provider import Builder, Layer
from gradcheck_cli.compute.reference import Reference, prepare
from gradcheck_cli.compute.runs import Runs, in_run
from gradcheck_cli.compute.settings import kept
from gradcheck_cli.compute.stress import stressed
from gradcheck_cli.compute.trial import CandidateRaised, answers, on_trial, raised_in, warned, words
from gradcheck_cli.errors import HarnessError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import built_dtype
from gradcheck_cli.records.effective import asked_of_the_forward
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import (
    DATA,
    FILLS,
    ROLES,
    ChannelSeen,
    Fill,
    Observation,
    PhaseSeen,
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
        began = time.perf_counter()
        try:
            # What a candidate leaves set otherwise outside of its phases is no later case's.
            with stressed(job.case, self.device), kept([]):
                return self._observed(job)
        except (RuntimeError, MemoryError) as error:
            if not answers(self.device):  # of what the candidate left behind, and no later case must suffer from
                seen = raised_in("gradcheck's own work after it", error, self.device)
                seconds = time.perf_counter() - began
                return Observation(
                    case=str(job.case), attempt=job.attempt, ending="raised", raised=seen, seconds=seconds
                )
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
        """All runs over the microbatches on one fill; fills in `effective` as soon as it is known."""
        case, phases, runs = job.case, list[PhaseSeen](), Runs(job, reference)
        poisoned = not reference.inapplicable
        for run in range(0 if reference.inapplicable else case.repeat):
            with in_run(run):
                poisoned = poison(POISON[fill], case, self.device) and poisoned
                layer = self._built(job, fill, effective)
                for after in self._run(job, fill, layer, reference, effective, unwatched if run else watch):
                    phases += runs.seen(run, after)
                    if after.phase in (
                        "forward",
                        "inference",
                    ):  # what was measured has left other things behind, many of them zero
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
            repeated=runs.told(),
        )

    def _built(self, job: Job, fill: Fill, effective: dict[str, str | int]) -> Layer:
        case = job.case
        built = on_trial(f"build, {DATA[fill]}", self.device)
        with built, determinism(case), filled(POISON[fill], self.device):
            layer: Layer = self.builders[job.target](case, self.device)
            as_built = named_as_moved(case, layout(layer))  # first: of what is no layer it says so
            note(effective, {**layer.effective(), **as_built})
        return layer

    def _run(
        self,
        job: Job,
        fill: Fill,
        layer: Layer,
        reference: Reference,
        effective: dict[str, str | int],
        watch: Watch,
    ) -> Iterator[After]:
        """One run; of another layer than the one that was asked for none: it may not even take these tensors."""
        case = job.case
        if not named_as_moved(case, layout(layer)).items() <= case.axes().items():
            return
        for after in observe(case, layer, reference.inputs, fill, watch):
            if after.phase == "move":  # nothing has run yet
                yield after
                continue
            # A layer that does not say which path it took has not said that it took the one asked for.
            unsaid: dict[str, str | int] = dict.fromkeys(asked_of_the_forward(case, after.phase), "unknown")
            with on_trial(
                f"reading the layer after the {after.phase} of microbatch {after.microbatch}, {DATA[fill]}", self.device
            ):
                note(effective, {**unsaid, **layer.effective(), **layout(layer), **after.called})
            yield after


def named_as_moved(case: Case, found: dict[str, str | int]) -> dict[str, str | int]:
    """What a layer was built as, its dtype as that of the case where it is yet to be moved there."""
    return found | {"dtype": case.dtype} if found["dtype"] == built_dtype(case) else found


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
