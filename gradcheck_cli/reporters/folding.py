"""Which cases share a row? Those that differ only in how large they are and how their tokens are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradcheck_cli.records.observation import ROLES, Role
from gradcheck_cli.records.roles import OF_A_CHAIN
from gradcheck_cli.records.verdict import Margin, Outcome, Verdict, gravest

KEY = ("provider", "api", "path", "single_grouped_weight", "fuse_wgrad_accumulation", "dtype")
_LEFT_OPEN = "auto"
# What was measured there is of something else than the row says.
_NOT_AS_ASKED = (Outcome.REFUSED, Outcome.NOT_THE_CASE)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One role over the cases of a row that have it: the gravest outcome, and how many of how many have that."""

    outcome: Outcome
    count: int
    of: int

    def __str__(self) -> str:
        if self.outcome is Outcome.PASSED:
            return "ok"
        return self.outcome.value if self.of == 1 else f"{self.outcome.value} {self.count}/{self.of}"


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest share of a bound that any slot of the row used up, and the largest of what output rounding leaves."""

    ratio: float
    after_rounding: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cases that agree in everything but sizes, bias and data."""

    axes: dict[str, str]
    asked: str  # the path; "auto" leaves it to the candidate
    ran: str  # the path, as far as it was seen
    cases: int
    roles: dict[Role, Cell]
    largest: Largest | None
    known: int = 0  # of the cases: those that fail as they are known to

    @property
    def path(self) -> str:
        """The path that ran; in brackets the one that was asked for, where that was not seen to run."""
        if not self.ran:
            return f"({self.asked})"
        return self.ran if self.asked in (_LEFT_OPEN, self.ran) else f"{self.ran} ({self.asked})"


def rows(verdicts: list[Verdict]) -> dict[str, list[Row]]:
    """The rows of each provider, in the order of the matrix; EXCLUDED cases were not asked and have none."""
    folded: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.outcome is not Outcome.EXCLUDED:
            folded.setdefault(tuple(str(verdict.axes.get(axis, "")) for axis in KEY), []).append(verdict)
    by_provider: dict[str, list[Row]] = {}
    for key, alike in folded.items():
        by_provider.setdefault(key[0], []).append(_row(dict(zip(KEY, key, strict=True)), alike))
    return by_provider


def has_path(alike: Sequence[Row]) -> bool:
    """Whether any row knows its path, and so the table has a column for it."""
    return any(row.ran or row.asked != _LEFT_OPEN for row in alike)


def brackets(alike: Sequence[Row]) -> bool:
    """Whether a path stands in brackets, which a legend must explain."""
    return has_path(alike) and any(row.path.endswith(")") for row in alike)


def has_known(alike: Sequence[Row]) -> bool:
    """Whether any row has known failures, and so the table a column for them."""
    return any(row.known for row in alike)


def roles_shown(alike: Sequence[Row]) -> list[Role]:
    """The roles that have a column: bgrad only where some case has a bias, those of a chain where some case is one."""
    some = ("bgrad", *OF_A_CHAIN)
    return [role for role in ROLES if role not in some or any(role in row.roles for row in alike)]


def columns(verdicts: Sequence[Verdict]) -> list[Role]:
    """The roles that have a column in a list of cases: those of a chain only where some case is one."""
    return [role for role in ROLES if role not in OF_A_CHAIN or any(one.of_role(role) for one in verdicts)]


def _row(axes: dict[str, str], alike: list[Verdict]) -> Row:
    margins = [margin for verdict in alike for margin in _margins(verdict)]
    return Row(
        axes=axes,
        asked=axes["path"] or _LEFT_OPEN,
        ran="/".join(sorted({str(verdict.effective["path"]) for verdict in alike if verdict.effective.get("path")})),
        cases=len(alike),
        roles={role: cell for role in ROLES if (cell := _cell(role, alike))},
        largest=_largest(margins) if margins else None,
        known=sum(bool(verdict.known) for verdict in alike),
    )


def _largest(margins: list[Margin]) -> Largest:
    # Each on its own: output rounding nearly fills the bound of fprop, and would hide what wgrad has left.
    return Largest(
        ratio=max(margin.ratio for margin in margins),
        after_rounding=max(margin.after_rounding for margin in margins),
    )


def _margins(verdict: Verdict) -> list[Margin]:
    return [margin for role, margin in verdict.margins.items() if verdict.of_role(role) not in _NOT_AS_ASKED]


def _cell(role: Role, alike: list[Verdict]) -> Cell | None:
    outcomes = [outcome for verdict in alike if (outcome := verdict.of_role(role))]
    if not outcomes:
        return None
    worst = gravest(outcomes)
    return Cell(outcome=worst, count=outcomes.count(worst), of=len(outcomes))
