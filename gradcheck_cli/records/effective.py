"""What does only a forward tell of what really ran?"""

from __future__ import annotations

from gradcheck_cli.records.case import Case


def asked_of_the_forward(case: Case) -> tuple[str, ...]:
    """The axes of which a case asks for something that a layer chooses anew in each forward."""
    path = ("path",) if case.path != "auto" else ()
    return (*path, "recipe") if case.recipe != "none" else path
