"""Did what was asked run? Requested against effective configuration, and a candidate's own refusal."""

from __future__ import annotations

import re

from gradcheck_cli.records.capability import Closed, closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation, Raised
from gradcheck_cli.records.verdict import Finding, Outcome


def not_the_case(case: Case, observation: Observation, environment: Environment) -> Finding | None:
    """NOT_THE_CASE, or REFUSED for a fallback that the capability table announces; None where the request ran."""
    asked = case.axes()
    free = {"path"} if case.path == "auto" else set()
    differs = [name for name, ran in observation.effective.items() if name not in free and asked.get(name, ran) != ran]
    if not differs:
        return None
    said = "; ".join(f"{name}={asked[name]}, and {name}={observation.effective[name]} ran" for name in differs)
    announced = [row for row in closed(case, environment) if row.falls_back_to]
    if differs == ["path"] and announced and observation.effective["path"] == announced[0].falls_back_to:
        return refused(announced[0], f"asked {said}, without a word from the candidate")
    warned = f" It warned: {observation.warnings[0]}" if observation.warnings else ""
    return Finding(slot="case", outcome=Outcome.NOT_THE_CASE, why=f"asked {said}.{warned}", diagnosis=differs[0])


def raised(case: Case, seen: Raised, environment: Environment) -> Finding:
    """REFUSED where the capability table says that this case is refused in these words, else RAISED."""
    first_line = seen.message.partition("\n")[0]
    said = f"{seen.type} in {seen.during}: {first_line[:300]}"
    for row in closed(case, environment):
        if row.says and re.search(row.says, seen.message):
            return refused(row, said)
    return Finding(
        slot="case", outcome=Outcome.RAISED, why=f"expected gradients; the candidate raised {said}", diagnosis=seen.type
    )


def refused(row: Closed, said: str) -> Finding:
    """A clear no, where one is due."""
    return Finding(
        slot="case",
        outcome=Outcome.REFUSED,
        why=f"closed by {row.because}: {said}",
        diagnosis=row.name,
        unlock=row.unlock,
    )
