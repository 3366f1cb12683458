"""What was concluded of a case? Findings, and the gravest of them."""

from __future__ import annotations

from enum import Enum

from gradcheck_cli.records.base import SCHEMA_VERSION, Record
from gradcheck_cli.records.case import DEFAULTS, LAYER
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import has

_ALL = {*LAYER, *DEFAULTS}


class Outcome(str, Enum):
    """What a slot or a case deserves, mildest first; NOT_THE_CASE is judged first and alone."""

    PASSED = "PASSED"
    EXCLUDED = "EXCLUDED"
    REFUSED = "REFUSED"
    VACUOUS = "VACUOUS"
    UNTESTED = "UNTESTED"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    PROTOCOL = "PROTOCOL"
    INACCURATE = "INACCURATE"
    INEXACT = "INEXACT"
    UNEXPECTED = "UNEXPECTED"
    NONFINITE = "NONFINITE"
    MISPLACED = "MISPLACED"
    MISSING = "MISSING"
    RAISED = "RAISED"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"
    NOT_THE_CASE = "NOT_THE_CASE"

    @property
    def gravity(self) -> int:
        """Position in the order of gravity."""
        return list(Outcome).index(self)

    @property
    def green(self) -> bool:
        """Whether a gate lets it pass."""
        return self in (Outcome.PASSED, Outcome.EXCLUDED, Outcome.REFUSED)

    @property
    def wrong_value(self) -> bool:
        """Whether a gradient arrived and is not right."""
        return self in (Outcome.INEXACT, Outcome.INACCURATE)

    @property
    def no_end(self) -> bool:
        """Whether the case ran and did not come to its end."""
        return self in (Outcome.RAISED, Outcome.TIMED_OUT, Outcome.CRASHED)

    @property
    def executed(self) -> bool:
        """Whether the candidate really ran the case that was asked."""
        return self not in (Outcome.EXCLUDED, Outcome.REFUSED, Outcome.UNTESTED, Outcome.NOT_THE_CASE)


def gravest(outcomes: list[Outcome]) -> Outcome:
    """The gravest of some outcomes; of none, UNTESTED: a pass is earned."""
    return max(outcomes, key=lambda outcome: outcome.gravity, default=Outcome.UNTESTED)


class Finding(Record, frozen=True, kw_only=True):
    """One conclusion about one kind of slot: `why` says what was expected and what was found."""

    slot: str  # the worst slot of the finding, `wgrad[3]`; "case" where it is about the whole case
    outcome: Outcome
    why: str
    diagnosis: str = ""
    ratio: float | None = None
    experts: list[int] = []
    unlock: str = ""  # of a REFUSED: what would open it

    @property
    def role(self) -> str:
        """What it is about: a role, or `case`."""
        return self.slot.partition("[")[0]


class Margin(Record, frozen=True, kw_only=True):
    """How near a role came to its bound, over all its slots."""

    slot: str
    ratio: float  # error / bound
    after_rounding: float  # what is left of the error after output rounding / what is left of the bound


class Mutants(Record, frozen=True, kw_only=True):
    """How many altered copies of the observed tensors the oracle rejected as each deserves."""

    killed: int
    of: int  # that could be applied to this case
    inapplicable: int = 0  # that leave these tensors as they are, or find nothing to alter
    survived: list[str] = []
    smallest_epsilon: float | None = None  # smallest relative error that is rejected in each of its gradients


class Verdict(Record, frozen=True, kw_only=True):
    """All findings of a case; its outcome is its gravest finding, PASSED where every slot passed."""

    schema: int = SCHEMA_VERSION
    case: str
    axes: dict[str, str | int]
    outcome: Outcome
    roles: dict[Role, Outcome] = {}
    findings: list[Finding] = []
    margins: dict[Role, Margin] = {}
    effective: dict[str, str | int] = {}
    kernels: list[str] = []  # phase and name of each that was seen on the device, or of each operator on a CPU
    channels: dict[str, str] = {}  # fill -> "judged", or why it was not
    notes: list[str] = []
    seconds: float = 0.0
    mutants: Mutants | None = None
    retried: Outcome | None = None  # in a fresh worker, of a case that cost its worker
    reproduced: bool | None = None  # whether it failed alike there
    known: str = ""  # links of the known failures that it is, where --known names all of its findings

    @property
    def every_axis(self) -> dict[str, str | int]:
        """Its axes; one that its run did not know yet has its default, which means what every case meant."""
        return self.axes if self.axes.keys() >= _ALL else {**dict.fromkeys(LAYER, ""), **DEFAULTS, **self.axes}

    @property
    def green(self) -> bool:
        """Whether a gate lets it pass: its outcome does, or the failure was known."""
        return self.outcome.green or bool(self.known)

    @property
    def red(self) -> list[Finding]:
        """The findings that no gate lets pass."""
        return [finding for finding in self.findings if not finding.outcome.green]

    @property
    def worst(self) -> Finding | None:
        """The finding behind the outcome."""
        return max(self.findings, key=lambda finding: finding.outcome.gravity, default=None)

    @property
    def worst_margin(self) -> Margin | None:
        """The margin that is nearest to its bound, or furthest past it."""
        return max(self.margins.values(), key=lambda margin: margin.ratio, default=None)

    def of_role(self, role: Role) -> Outcome | None:
        """What one role deserves; None where the case has no such gradient.

        A case that did not get as far as its slots says the same of each; any other slot nobody judged is UNTESTED.
        """
        if role in self.roles:
            return self.roles[role]
        if not has(self.axes, role):
            return None
        whole = not self.outcome.executed or self.outcome.gravity >= Outcome.RAISED.gravity
        return self.outcome if whole else Outcome.UNTESTED
