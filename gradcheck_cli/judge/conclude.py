"""What is the verdict on a case? Asks the questions in their order and groups the answers into findings."""

from __future__ import annotations

from gradcheck_cli.judge.accuracy import accuracy
from gradcheck_cli.judge.contract import Expected, expected
from gradcheck_cli.judge.effective import fell_back, not_the_case, raised
from gradcheck_cli.judge.judgement import Judgement
from gradcheck_cli.judge.last_words import last_words
from gradcheck_cli.judge.presence import Buffers, absent, protocol
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import FILLS, ROLES, ChannelSeen, Observation, Phase, Role
from gradcheck_cli.records.verdict import Finding, Margin, Outcome, Verdict, gravest

Judged = tuple[Expected, ChannelSeen, Judgement]
_UNSEEN = Judgement(outcome=Outcome.UNTESTED, why="expected an observation of this slot; found none")
ENDINGS = {"crashed": Outcome.CRASHED, "timed_out": Outcome.TIMED_OUT}


def conclude(case: Case, observation: Observation, environment: Environment) -> Verdict:
    """The verdict: did the request run, did it end, was everything delivered, is it right?"""
    only = not_the_case(case, observation, environment) or ending(case, observation, environment)
    if only:
        return _verdict(case, observation, [only], dict.fromkeys(roles_of(case), only.outcome), {})
    judged = judge_slots(case, observation)
    findings = group(judged)
    roles = {role: gravest([j.outcome for e, _, j in judged if e.role == role]) for role in roles_of(case)}
    refusal = fell_back(case, observation, environment)
    if refusal:  # what ran instead is judged all the same: a refusal is no cover for a wrong gradient
        findings = [*findings, refusal]
        roles = {role: gravest([outcome, refusal.outcome]) for role, outcome in roles.items()}
    return _verdict(case, observation, findings, roles, margins(judged))


def excluded(case: Case, name: str, why: str) -> Verdict:
    """The verdict on a case that a named constraint leaves out."""
    finding = Finding(slot="case", outcome=Outcome.EXCLUDED, why=why, diagnosis=name)
    return Verdict(case=str(case), axes=case.axes(), outcome=Outcome.EXCLUDED, findings=[finding])


def roles_of(case: Case) -> list[Role]:
    """The roles that a case has: bgrad only with a bias."""
    return [role for role in ROLES if role != "bgrad" or case.bias]


def ending(case: Case, observation: Observation, environment: Environment) -> Finding | None:
    """A finding for a case that did not come to its end; None for one that did."""
    if observation.ending == "finished":
        return None
    if observation.ending == "raised" and observation.raised:
        return raised(case, observation, observation.raised, environment)
    why = f"expected a result; the worker ended with {observation.exit_status or 'no status'}"
    diagnosis = observation.exit_status
    if observation.ending == "timed_out":
        why = f"expected a result within the time limit; there was none after {observation.seconds:.1f} s"
        diagnosis = "time limit"  # the signal that then ended the worker was gradcheck's own
    told = last_words(observation.last_output)
    said = f"; its last output: {told}" if told else ""
    # Anything that is not a known ending is a worker that did not give its word: a crash.
    outcome = ENDINGS.get(observation.ending, Outcome.CRASHED)
    return Finding(slot="case", outcome=outcome, why=why + said, diagnosis=diagnosis)


def judge_slots(case: Case, observation: Observation) -> list[Judged]:
    """Every slot that the contract names, in every channel that was run; UNTESTED where nothing was seen of it."""
    run = [channel for channel in observation.channels if not channel.inapplicable]
    wanted = expected(case)
    judged = [(slot, channel, j) for channel in run for slot in wanted for j in judge_slot(case, slot, channel)]
    passed = {_key(slot) for slot, _, j in judged if j.outcome is Outcome.PASSED}
    # What one channel cannot tell, another may: thin exact data can leave a small slot all zero.
    judged = [row for row in judged if row[2].outcome is not Outcome.VACUOUS or _key(row[0]) not in passed]
    # Where an expert without tokens was to get its zeros cannot be told: it shares the fate of the others.
    misplaced = {slot.role for slot, _, j in judged if j.outcome is Outcome.MISPLACED}
    judged = [row for row in judged if not (_no_zeros(row) and row[0].role in misplaced)]
    there = {channel.fill: channel.inapplicable for channel in observation.channels}
    lacking = [fill for fill in FILLS if not run or fill not in there]
    unseen = {fill: _unseen(there.get(fill, "")) for fill in lacking}
    return judged + [(slot, ChannelSeen(fill=fill), unseen[fill]) for fill in lacking for slot in wanted]


def _unseen(inapplicable: str) -> Judgement:
    """UNTESTED, because the data drawn did not allow the comparison or because nothing was seen."""
    why = f"expected a comparison; the data does not allow one: {inapplicable}" if inapplicable else _UNSEEN.why
    return Judgement(outcome=Outcome.UNTESTED, why=why)


def _no_zeros(row: Judged) -> bool:
    wanted, _, judgement = row
    return wanted.empty and judgement.outcome is Outcome.MISSING


def judge_slot(case: Case, wanted: Expected, channel: ChannelSeen) -> list[Judgement]:
    """All that is wrong with one slot in one channel, or one PASSED."""
    seen = buffers(wanted, channel)
    looked_at = ("grad", "main_grad") if wanted.role == "wgrad" else (wanted.buffer,)
    if not all(buffer in seen for buffer in looked_at):
        return [_UNSEEN]
    away = absent(case, wanted, seen)
    if away:
        return [away]
    shape = protocol(wanted, seen)
    judged = [*shape, accuracy(case, wanted, seen[wanted.buffer], channel.fill)]
    wrong = [judgement for judgement in judged if judgement.outcome is not Outcome.PASSED]
    return wrong or judged


def buffers(wanted: Expected, channel: ChannelSeen) -> Buffers:
    """Everything seen of the wanted gradient, in whichever buffer, at the end of the wanted phase."""
    phases = [p for p in channel.phases if (p.microbatch, p.phase) == (wanted.microbatch, wanted.phase)]
    slots = [slot for phase in phases for slot in phase.slots]
    return {slot.buffer: slot for slot in slots if (slot.role, slot.expert) == (wanted.role, wanted.expert)}


def group(judged: list[Judged]) -> list[Finding]:
    """One finding per role, outcome and diagnosis: the worst slot speaks, and all its experts are named."""
    groups: dict[tuple[Role, Outcome, str], list[Judged]] = {}
    for row in judged:
        wanted, _, judgement = row
        if judgement.outcome is not Outcome.PASSED:
            groups.setdefault((wanted.role, judgement.outcome, judgement.diagnosis), []).append(row)
    # A wgrad that is not there leaves its flag unset, also where an expert without tokens misses nothing: one fault,
    # told once.
    away = {role for role, outcome, _ in groups if outcome in (Outcome.MISSING, Outcome.MISPLACED)}
    told = {key: rows for key, rows in groups.items() if key[0] not in away or key[1] is not Outcome.PROTOCOL}
    findings = [_finding(rows) for rows in told.values()]
    return sorted(findings, key=lambda finding: -finding.outcome.gravity)


def _finding(rows: list[Judged]) -> Finding:
    wanted, channel, worst = max(rows, key=lambda row: row[2].ratio or 0.0)
    where = f"after the {wanted.phase} of microbatch {wanted.microbatch}, {channel.fill} data"
    return Finding(
        slot=wanted.slot,
        outcome=worst.outcome,
        why=f"{worst.why} ({where})",
        diagnosis=worst.diagnosis,
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


def _key(wanted: Expected) -> tuple[str, int, Phase]:
    return wanted.slot, wanted.microbatch, wanted.phase


def _verdict(
    case: Case,
    observation: Observation,
    findings: list[Finding],
    roles: dict[Role, Outcome],
    worst: dict[Role, Margin],
) -> Verdict:
    return Verdict(
        case=str(case),
        axes=case.axes(),
        outcome=gravest([finding.outcome for finding in findings] or list(roles.values())),
        roles=roles,
        findings=findings,
        margins=worst,
        effective=observation.effective,
        channels={channel.fill: channel.inapplicable or "judged" for channel in observation.channels},
        notes=_cannot_see(case),
        seconds=observation.seconds,
    )


def _cannot_see(case: Case) -> list[str]:
    """What this case's own data makes invisible."""
    if case.grad_output != "expanded":
        return []
    return [
        "grad_output=expanded is the same everywhere: rows that change places in a wgrad are invisible to this case"
    ]


def untested(case: Case) -> Verdict:
    """The verdict on a case that was asked for and never came to run."""
    why = "expected the case to run; the run ended before it"
    finding = Finding(slot="case", outcome=Outcome.UNTESTED, why=why)
    return Verdict(case=str(case), axes=case.axes(), outcome=Outcome.UNTESTED, findings=[finding])
