"""What was seen? Facts and distances of one case, enough to judge it again without a device."""

from __future__ import annotations

from typing import Literal

from gradcheck_cli.records.base import OBSERVATION_VERSION, Record

# Of a chain of layers wgrad is that of fc1's weights, wgrad_fc2 of fc2's, and pgrad of the probabilities between them.
Role = Literal["fprop", "dgrad", "wgrad", "bgrad", "wgrad_fc2", "pgrad"]
ROLES: tuple[Role, ...] = ("fprop", "dgrad", "wgrad", "bgrad", "wgrad_fc2", "pgrad")
# `weight` is no gradient: it is what a step of an optimizer makes of one.
Buffer = Literal["output", "input.grad", "grad", "main_grad", "probs.grad", "weight"]
Phase = Literal["move", "forward", "inference", "backward", "backward_dw", "step"]
Fill = Literal["exact", "range", "normal"]
# What a fill is called in words.
DATA = {"exact": "exact data", "range": "range data", "normal": "random data"}
FILLS: tuple[Fill, ...] = ("exact", "range", "normal")
# What memory that nobody should read is filled with, byte by byte: NaN in every dtype, a large number in every dtype.
POISON_BYTES = {"0xFF": 0xFF, "0x71": 0x71}
Ending = Literal["finished", "raised", "timed_out", "crashed", "lost"]

# Stands for infinity in JSON: an error where the bound is zero.
INFINITE = 1e30


class Deviation(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The elements of one slot against one content that they might hold, in fp64.

    Ratios are None in the exact channel, which has no bound. `smallest_lambda` is the lambda at which the slot
    would just pass; INFINITE where none does.
    """

    compared: int
    differing: int
    largest_error: float
    worst: tuple[int, int]  # row of the slot, column: where the error is largest against its bound
    expected: float  # the reference's element there
    found: float  # the candidate's element there; INFINITE where it is not finite
    ratio: float | None = None
    after_rounding: float | None = None
    smallest_lambda: float | None = None


class SlotSeen(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One slot in one buffer at the end of one phase."""

    role: Role
    expert: int
    buffer: Buffer
    present: bool
    shape: tuple[int, ...] = ()  # of the whole buffer, as the candidate left it
    dtype: str = ""
    nonfinite: int = 0
    nonzero_expected: int = 0  # elements of the expected content that are not zero
    uniform: bool = False  # the expected content has at least two elements, and all are equal
    contents: dict[str, Deviation] = {}  # content -> deviation: value, sum, prefill, prefill+sum
    residuals: dict[str, float] = {}  # hypothesis -> |seen - hypothesis| / |expected|, Frobenius
    added_flag: bool | None = None  # grad_added_to_main_grad, on main_grad slots
    hooks: int | None = None  # how often autograd was handed a weight's gradient, or a dummy, on grad slots
    replaced: bool = False  # the attribute is another tensor than the one that was attached

    @property
    def slot(self) -> str:
        """The identity of one gradient: `wgrad[3]`."""
        return f"{self.role}[{self.expert}]"


class PhaseSeen(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All slots at the end of one phase of one microbatch on one rank, as found or as altered by a mutant."""

    rank: int = 0
    repeat: int = 0  # which run of the case this is of; a later one is told where it is not as the first was
    mutant: str = ""  # the name of the alteration; "" for the tensors as they were found
    microbatch: int
    phase: Phase
    slots: list[SlotSeen]  # of a mutant: only those that it altered
    disturbed: list[str] = []  # what was changed though nobody asked for it: x, weight, a guard, a layout


class Repeated(Record, frozen=True, kw_only=True):
    """One role in all runs on one fill, compared bit for bit with the first; two NaN are the same."""

    role: Role
    repeats: int  # after the first
    differing: int  # of these
    distinct: int  # different results, that of the first included
    largest_ulps: float  # in units in the last place; INFINITE where one is not finite, or not there
    worst: str = ""  # the slot where that is: `wgrad[3]`
    experts: list[int] = []  # whose results differ


class ChannelSeen(Record, frozen=True, kw_only=True):
    """One pass over the case's microbatches with one fill of the data, or as many as the case repeats."""

    fill: Fill
    inapplicable: str = ""  # why the channel's argument does not hold for the data drawn; then it was not run
    exponents: dict[Role, int] = {}  # exact and range: every value of a role is an integer times 2 to the power of this
    largest_scale: float = 0.0  # largest sum |a||b|, prefill included, over everything stored, in these units
    limit: float = 0.0  # exact: integers up to this are held exactly; normal: the dtype's largest number
    unrounded: list[Role] = []  # range: the products whose every value is one that a narrower dtype holds too
    poison: str = ""  # what memory that nobody should read was filled with: 0xFF, 0x71, stale; "" where it was not
    phases: list[PhaseSeen] = []
    repeated: list[Repeated] = []  # of a case that repeats


class Raised(Record, frozen=True, kw_only=True):
    """An exception of the candidate: its type, message, and where in the case it came."""

    type: str
    message: str
    during: str  # build, forward, backward; with the channel and the microbatch
    traceback: str
    sticky: bool = False  # the device no longer answers
    suspect: bool = (
        False  # of CUDA, or with a graph of its: it may have left anything; either way the worker is replaced
    )


class Observation(Record, frozen=True, kw_only=True):
    """Everything seen of one case: read by `judge`, stored in `observations.jsonl`."""

    schema: int = OBSERVATION_VERSION
    case: str
    attempt: int = 1
    ending: Ending
    channels: list[ChannelSeen] = []
    mutants: list[str] = []  # that were asked for; those that could be applied have phases of their own
    effective: dict[str, str | int] = {}  # what really ran, under the names of the axes
    # `forward: aten::mm`: what the candidate launched, of the first case of its configuration; else nobody looked.
    kernels: list[str] = []
    warnings: list[str] = []
    raised: Raised | None = None
    last_output: str = ""  # of a worker that did not come back
    exit_status: str = ""  # of that worker: "signal 11 (SIGSEGV)", "exit code 3"; of one that is lost what it answered
    seconds: float = 0.0
    again: Observation | None = None  # of a case that cost its worker: what was seen of it in a fresh one
