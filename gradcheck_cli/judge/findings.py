"""What is said of many slots? One finding for all that share a fault, and how near each role came to its bound."""

from __future__ import annotations

from gradcheck_cli.judge.contract import Expected
from gradcheck_cli.judge.repeats import which
from gradcheck_cli.judge.slots import Judged, key
from gradcheck_cli.records.observation import DATA, FILLS, Role
from gradcheck_cli.records.roles import BY_TOKEN
from gradcheck_cli.records.verdict import Finding, Margin, Outcome


def group(judged: list[Judged]) -> list[Finding]:
    """One finding per role, outcome and diagnosis: the worst slot speaks, and all its experts are named."""
    groups: dict[tuple[Role, Outcome, str], list[Judged]] = {}
    names = words(judged)
    for row in judged:
        wanted, _, judgement = row
        if judgement.outcome is not Outcome.PASSED:
            # What one channel could name has that name in the others.
            name = names.get(_named(wanted), "") if judgement.outcome.wrong_value else judgement.diagnosis
            groups.setdefault((wanted.role, judgement.outcome, name), []).append(row)
    # A wgrad that is not there leaves its flag unset, also where an expert without tokens misses nothing: one fault,
    # told once.
    away = {role for role, outcome, _ in groups if outcome in (Outcome.MISSING, Outcome.MISPLACED)}
    told = {key: rows for key, rows in groups.items() if key[0] not in away or key[1] is not Outcome.PROTOCOL}
    findings = [_finding(name, rows) for (_, _, name), rows in told.items()]
    return sorted(findings, key=lambda finding: -finding.outcome.gravity)


def words(judged: list[Judged]) -> dict[tuple[str, int], str]:
    """What the wrong values of each gradient are called, in every channel: a parameter's gradient grows, with one name.

    The last microbatch tells most; of its channels the first that could name it, since integers do so exactly.
    """
    names = dict.fromkeys(rounded_too_often(judged), "low-precision accumulation")
    best_last = sorted(judged, key=lambda row: (row[0].microbatch, -FILLS.index(row[1].fill)))
    return names | {_named(e): j.diagnosis for e, _, j in best_last if j.diagnosis and j.outcome.wrong_value}


def _named(wanted: Expected) -> tuple[str, int]:
    return wanted.slot, wanted.microbatch if wanted.role in BY_TOKEN else 0


def rounded_too_often(judged: list[Judged]) -> list[tuple[str, int]]:
    """Gradients that are exact while no sum rounds, and differ once sums outgrow their dtype: partial ones round."""
    exact = {key(e) for e, channel, j in judged if channel.fill == "exact" and j.outcome is Outcome.PASSED}
    # What differs between runs may be exact by luck.
    by_luck = {one.role for _, channel, _ in judged for one in channel.repeated if one.differing}
    in_range = [(e, j) for e, channel, j in judged if channel.fill == "range" and e.role not in by_luck]
    return [_named(e) for e, j in in_range if j.outcome.wrong_value and key(e) in exact]


def _finding(name: str, rows: list[Judged]) -> Finding:
    wanted, channel, worst = max(rows, key=lambda row: row[2].smallest_lambda or 0.0)
    where = f"after the {wanted.phase} of microbatch {wanted.microbatch}, {DATA[channel.fill]}"
    where += which(channel, wanted.microbatch, wanted.phase)
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
