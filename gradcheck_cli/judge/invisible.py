"""What can a case's own data not show? A pass says so, in words, since no mutant can prove what none can change."""

from __future__ import annotations

from gradcheck_cli.judge.contract import BEFORE, NOTHING, expected
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.roles import is_chain

SAME_EVERYWHERE = (
    "grad_output=expanded: every element of grad_output is 1. Invisible to this case: a layer that does not read it, "
    "reads other rows of it or pairs its rows with other tokens; rows that change places in a dgrad or a wgrad, and "
    "elements in a bgrad; how sums of it alone are rounded"
)


NO_INTEGERS = (
    "api=op_mlp: random data alone, since silu makes no integers of integers. Invisible to this case: what rounds as "
    "right layers round, such as one token among many left out of a wgrad, or sums kept in bf16; what lies in memory "
    "that nobody should read, but for an earlier result"
)


def invisible(case: Case, observation: Observation) -> list[str]:
    """A note for each class of faults that the data of the case hides."""
    uniform = [SAME_EVERYWHERE] if case.grad_output == "expanded" else []
    chain = [NO_INTEGERS] if is_chain(case) else []
    return [*uniform, *chain, *_without_elements(case), *_without_roundings(case, observation)]


def _without_elements(case: Case) -> list[str]:
    """Results of no elements: nothing of them can be compared."""
    elements: dict[str, int] = {}
    for wanted in (one for one in expected(case) if one.content not in (NOTHING, BEFORE)):
        elements[wanted.role] = elements.get(wanted.role, 0) + wanted.elements
    empty = [role for role, count in elements.items() if not count]
    if not empty:
        return []
    return [f"no expert has tokens: of {' and '.join(empty)} only the shape and dtype could be looked at"]


def _without_roundings(case: Case, observation: Observation) -> list[str]:
    """Products that on range data no path has to round."""
    return [
        f"range data: no {role} of this case needs a rounding: where a path rounds it too often is invisible"
        for channel in observation.channels
        for role in (channel.unrounded if any(case.splits()) and not channel.inapplicable else ())
    ]
