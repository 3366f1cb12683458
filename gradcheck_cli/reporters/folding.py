"""Which cases share a row? Those that differ only in how large they are and how their tokens are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradcheck_cli.records.observation import ROLES, Role
from gradcheck_cli.records.verdict import Margin, Outcome, Verdict, gravest

_KEY = ("provider", "api", "path", "single_grouped_weight", "fuse_wgrad_accumulation", "dtype")


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
    path: str  # as asked, else as it was seen to run, else ""
    cases: int
    roles: dict[Role, Cell]
    largest: Largest | None


def rows(verdicts: list[Verdict]) -> dict[str, list[Row]]:
    """The rows of each provider, in the order of the matrix; EXCLUDED cases were not asked and have none."""
    folded: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.outcome is not Outcome.EXCLUDED:
            folded.setdefault(tuple(str(verdict.axes.get(axis, "")) for axis in _KEY), []).append(verdict)
    by_provider: dict[str, list[Row]] = {}
    for key, alike in folded.items():
        by_provider.setdefault(key[0], []).append(_row(dict(zip(_KEY, key, strict=True)), alike))
    return by_provider


def has_path(alike: Sequence[Row]) -> bool:
    """Whether any row knows its path, and so the table has a column for it."""
    return any(row.path for row in alike)


def roles_shown(alike: Sequence[Row]) -> list[Role]:
    """The roles that have a column: bgrad only where some case has a bias, or got a gradient for none."""
    return [role for role in ROLES if role != "bgrad" or any("bgrad" in row.roles for row in alike)]


def _row(axes: dict[str, str], alike: list[Verdict]) -> Row:
    margins = [margin for verdict in alike for margin in verdict.margins.values()]
    return Row(
        axes=axes,
        path=_path(axes["path"], alike),
        cases=len(alike),
        roles={role: cell for role in ROLES if (cell := _cell(role, alike))},
        largest=_largest(margins) if margins else None,
    )


def _largest(margins: list[Margin]) -> Largest:
    # Each on its own: output rounding nearly fills the bound of fprop, and would hide what wgrad has left.
    return Largest(
        ratio=max(margin.ratio for margin in margins),
        after_rounding=max(margin.after_rounding for margin in margins),
    )


def _path(asked: str, alike: list[Verdict]) -> str:
    if asked not in ("", "auto"):
        return asked
    return "/".join(sorted({str(verdict.effective["path"]) for verdict in alike if verdict.effective.get("path")}))


def _cell(role: Role, alike: list[Verdict]) -> Cell | None:
    outcomes = [outcome for verdict in alike if (outcome := verdict.of_role(role))]
    if not outcomes:
        return None
    worst = gravest(outcomes)
    return Cell(outcome=worst, count=outcomes.count(worst), of=len(outcomes))
