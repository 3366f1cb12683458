"""What does only a forward tell of what really ran?"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Phase


def asked_of_the_forward(case: Case, phase: Phase) -> tuple[str, ...]:
    """The axes of which a case asks for something that a layer chooses anew in each forward, once it can be known.

    A forward that is to be run again leaves no graph, which alone would tell: the second one does.
    """
    if phase == "inference" or (phase == "forward" and case.recompute in ("reentrant", "te")):
        return ()
    left_open = {"path": "auto", "recipe": "none", "backward_override": "none"}
    return tuple(name for name, value in left_open.items() if getattr(case, name) != value)
