"""What does only a forward tell of what really ran?"""

from __future__ import annotations

from gradcheck_cli.records.case import Case


def asked_of_the_forward(case: Case) -> tuple[str, ...]:
    """The axes of which a case asks for something that a layer chooses anew in each forward."""
    left_open = {"path": "auto", "recipe": "none", "backward_override": "none"}
    return tuple(name for name, value in left_open.items() if getattr(case, name) != value)
