"""Did what was asked run? Requested against effective configuration, and what the capability table says is closed."""

from __future__ import annotations

import re

from gradcheck_cli.judge.kernels import contradiction, effective
from gradcheck_cli.records.capability import Closed, closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.effective import asked_of_the_forward
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.gates import asked_path
from gradcheck_cli.records.kernels import PATHS, shown
from gradcheck_cli.records.observation import Observation, Raised
from gradcheck_cli.records.verdict import Finding, Outcome

AT_ONCE = r"(build|loading)\b"


def not_the_case(case: Case, observation: Observation, environment: Environment) -> Finding | None:
    """NOT_THE_CASE where something else ran, or nobody says what; None for a fallback that the table announces.

    What ran is what the candidate says of itself, and what its kernels show.
    """
    contradicted = contradiction(case, observation)
    if contradicted:
        axis, why = contradicted
        return Finding(slot="case", outcome=Outcome.NOT_THE_CASE, why=why, diagnosis=axis)
    if fell_back(case, observation, environment):
        return None
    differs = differences(case, observation)
    # Where no data allows a comparison nothing ran, and nobody could say what did.
    ran = observation.ending == "finished" and any(not channel.inapplicable for channel in observation.channels)
    silent = [name for name in asked_of_the_forward(case, "backward") if ran and name not in observation.effective]
    if not differs and not silent:
        return None
    unsaid = "; ".join(
        f"{name}={getattr(case, name)}, and the candidate does not say which {name} ran" for name in silent
    )
    said = _in_words(case, observation, differs) or unsaid
    warned = f" It warned: {observation.warnings[0]}" if observation.warnings else ""
    diagnosis = (differs or silent)[0]
    return Finding(slot="case", outcome=Outcome.NOT_THE_CASE, why=f"asked {said}.{warned}", diagnosis=diagnosis)


def fell_back(case: Case, observation: Observation, environment: Environment) -> Finding | None:
    """REFUSED for a silent fallback to another path or layout that the capability table announces; else None."""
    differs, ran = differences(case, observation), effective(case, observation)
    announced = [
        row
        for row in closed(case, environment)
        if differs and set(differs) <= set(row.falls_back_on)
        if row.falls_back_to and all(row.falls_back_to in _parts(case, ran[name]) for name in differs)
    ]
    if not announced:
        return None
    said = _in_words(case, observation, differs)
    return refused(announced[0], f"asked {said}, without a word from the candidate")


def _parts(case: Case, ran: str | int) -> list[str]:
    """What ran, one by one: fprop and dgrad leave CUTLASS each by itself."""
    return str(ran).split(", then ") if case.path == "cutlass" else [str(ran)]


def ran_all_the_same(case: Case, observation: Observation, environment: Environment) -> list[str]:
    """A note for each row of the capability table by which a case that ran to its end had to be refused, or fall back.

    It changes no outcome: what ran is judged as any case is, and it is the table that is to be looked at.
    """
    ran, asked = effective(case, observation), {**case.axes(), "path": asked_path(case, environment)}
    if not any(channel.phases for channel in observation.channels):
        return []
    due = [
        row
        for row in closed(case, environment)
        if not row.falls_back_to or _as_asked([name for name in row.falls_back_on if name in ran], ran, asked)
    ]
    said = [f"runs {row.falls_back_to} instead" if row.falls_back_to else "is refused" for row in due]
    return [
        f"the capability table says that this {what} ({row.name}: {row.because}): it ran"
        for what, row in zip(said, due, strict=True)
    ]


def _as_asked(names: list[str], ran: dict[str, str | int], asked: dict[str, str | int]) -> bool:
    return bool(names) and all(ran[name] == asked[name] for name in names)


def differences(case: Case, observation: Observation) -> list[str]:
    """The axes on which something else ran than was asked.

    What is unknown because the candidate raised before it could be told is none: what it raised is told.
    """
    asked = case.axes()
    found = effective(case, observation)
    cut_off = [name for name, ran in found.items() if observation.raised and ran == "unknown"]
    free = {*cut_off, *({"path"} if case.path == "auto" else ())}
    return [name for name, ran in found.items() if name not in free and asked.get(name, ran) != ran]


def raised(case: Case, observation: Observation, seen: Raised, environment: Environment) -> Finding:
    """REFUSED where the capability table says that this case is refused in these words, else RAISED.

    A refusal comes at once, with the first microbatch that is closed and on the first data, and leaves the device in
    order.
    """
    first_line = seen.message.partition("\n")[0]
    said = f"{seen.type} in {seen.during}: {first_line[:300]}"
    nothing_ran = not seen.sticky and all(not channel.phases for channel in observation.channels)
    for row in closed(case, environment) if nothing_ran else ():
        phase = "(forward|backward)" if row.in_backward else "forward"
        in_time = re.match(rf"{AT_ONCE}|{phase} of microbatch {row.microbatch}\b", seen.during)
        if in_time and row.says and row.raises == seen.type and re.search(row.says, first_line):
            return refused(row, said)
    return Finding(
        slot="case", outcome=Outcome.RAISED, why=f"expected gradients; the candidate raised {said}", diagnosis=seen.type
    )


def _in_words(case: Case, observation: Observation, differs: list[str]) -> str:
    asked, found = case.axes(), effective(case, observation)
    said = "; ".join(f"{name}={asked[name]}, and {name}={found[name]} ran" for name in differs)
    if "path" not in differs or "cutlass" not in f"{case.path}, then {found['path']}".split(", then "):
        return said
    if found["path"] == "unknown" != observation.effective["path"]:
        return f"{said}: only kernels show CUTLASS, and torch's profiler gave none (the worker's log may say why)"
    other = next((name for path in PATHS if path != case.path and (name := shown(path, observation.kernels))), "")
    return f"{said}: {other}" if other else said


def refused(row: Closed, said: str) -> Finding:
    """Closed, as the table says: by a no of the candidate, or by the path that ran instead."""
    return Finding(
        slot="case",
        outcome=Outcome.REFUSED,
        why=f"closed by {row.because}: {said}",
        diagnosis=row.name,
        unlock=row.unlock,
    )
