"""What is said of many slots? One finding for all that share a fault, and how near each role came to its bound."""

from __future__ import annotations

from gradcheck_cli.judge.slots import Judged, key
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.verdict import Finding, Margin, Outcome


def group(judged: list[Judged]) -> list[Finding]:
    """One finding per role, outcome and diagnosis: the worst slot speaks, and all its experts are named."""
    groups: dict[tuple[Role, Outcome, str], list[Judged]] = {}
    names = dict.fromkeys(rounded_too_often(judged), "low-precision accumulation")
    names |= {e.slot: j.diagnosis for e, _, j in judged if j.diagnosis and j.outcome.wrong_value}
    for row in judged:
        wanted, _, judgement = row
        if judgement.outcome is not Outcome.PASSED:
            # What one channel could name has that name in the others.
            name = judgement.diagnosis or (names.get(wanted.slot, "") if judgement.outcome.wrong_value else "")
            groups.setdefault((wanted.role, judgement.outcome, name), []).append(row)
    # A wgrad that is not there leaves its flag unset, also where an expert without tokens misses nothing: one fault,
    # told once.
    away = {role for role, outcome, _ in groups if outcome in (Outcome.MISSING, Outcome.MISPLACED)}
    told = {key: rows for key, rows in groups.items() if key[0] not in away or key[1] is not Outcome.PROTOCOL}
    findings = [_finding(name, rows) for (_, _, name), rows in told.items()]
    return sorted(findings, key=lambda finding: -finding.outcome.gravity)


def rounded_too_often(judged: list[Judged]) -> list[str]:
    """Slots that are exact while no sum rounds, and differ once sums outgrow their dtype: partial sums were rounded."""
    exact = {key(e) for e, channel, j in judged if channel.fill == "exact" and j.outcome is Outcome.PASSED}
    in_range = [(e, j) for e, channel, j in judged if channel.fill == "range"]
    return [e.slot for e, j in in_range if j.outcome.wrong_value and key(e) in exact]


def _finding(name: str, rows: list[Judged]) -> Finding:
    wanted, channel, worst = max(rows, key=lambda row: row[2].smallest_lambda or 0.0)
    where = f"after the {wanted.phase} of microbatch {wanted.microbatch}, {channel.fill} data"
    return Finding(
        slot=wanted.slot,
        outcome=worst.outcome,
        why=f"{worst.why} ({where})",
        diagnosis=name,
        ratio=worst.ratio,
        experts=sorted({row[0].expert for row in rows}),
    )


def margins(judged: list[Judged]) -> dict[Role, Margin]:
    """How near each role came to its bound: its worst slot on random data."""
    worst: dict[Role, Margin] = {}
    for wanted, _, judgement in judged:
        if judgement.ratio is not None:
            margin = Margin(slot=wanted.slot, ratio=judgement.ratio, after_rounding=judgement.after_rounding or 0.0)
            worst[wanted.role] = max(worst.get(wanted.role, margin), margin, key=lambda one: one.ratio)
    return worst
