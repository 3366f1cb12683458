"""Would a wrong gradient have been seen? Each mutant of what was observed is judged as the observation itself was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gradcheck_cli.judge.contract import Expected, expected
from gradcheck_cli.judge.judgement import Judgement
from gradcheck_cli.records.battery import MUTANTS, Mutant
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.observation import ChannelSeen, Observation, PhaseSeen, Role, SlotSeen
from gradcheck_cli.records.verdict import Finding, Mutants, Outcome, Verdict, gravest

Judge = Callable[[Expected, ChannelSeen], list[Judgement]]

MOST_NAMED = 5


def proved(verdict: Verdict, case: Case, observation: Observation, judge: Judge) -> Verdict:
    """A pass with what it is worth: how many mutants were rejected; VACUOUS where a required one was not.

    Any other verdict, and a pass without mutants, stays as it is.
    """
    if verdict.outcome is not Outcome.PASSED or not observation.mutants:
        return verdict
    asked = [MUTANTS[name] for name in observation.mutants if name in MUTANTS]
    wanted = expected(case)
    outcomes = {
        mutant: {o for channel in observation.channels for o in outcomes_in(channel, mutant, wanted, judge)}
        for mutant in asked
    }
    applied = [mutant for mutant, seen in outcomes.items() if seen]
    killed = [mutant for mutant in applied if outcomes[mutant] & set(mutant.fault.deserves)]
    survived = [mutant for mutant in applied if mutant not in killed]
    seen_from: dict[Role, int] = {}
    for mutant in killed:
        if mutant.fault.roundings:
            seen_from[mutant.role] = min(seen_from.get(mutant.role, mutant.fault.roundings), mutant.fault.roundings)
    counted = Mutants(
        killed=len(killed),
        of=len(applied),
        inapplicable=len(asked) - len(applied),
        survived=[mutant.name for mutant in survived],
        smallest_epsilon=max(seen_from.values()) * FORMATS[case.dtype].unit_roundoff if seen_from else None,
    )
    told = msgspec.structs.replace(verdict, mutants=counted)
    return _vacuous(told, [one for one in survived if one.fault.required])


def _vacuous(verdict: Verdict, survived: list[Mutant]) -> Verdict:
    """The verdict with a finding for each role in which a required mutant survived."""
    if not survived:
        return verdict
    by_role = {role: [one for one in survived if one.role == role] for role in dict.fromkeys(m.role for m in survived)}
    findings = [_finding(mutants) for mutants in by_role.values()]
    roles = {
        role: gravest([outcome, Outcome.VACUOUS]) if role in by_role else outcome
        for role, outcome in verdict.roles.items()
    }
    return msgspec.structs.replace(
        verdict,
        outcome=gravest([verdict.outcome, *(finding.outcome for finding in findings)]),
        findings=[*findings, *verdict.findings],
        roles=roles,
    )


def _finding(survived: list[Mutant]) -> Finding:
    role = survived[0].role
    told = [f"{one.name} ({one.fault.summary})" for one in survived[:MOST_NAMED]]
    more = [f"{len(survived) - MOST_NAMED} more"] if len(survived) > MOST_NAMED else []
    due = " or ".join(outcome.value for outcome in survived[0].fault.deserves)
    return Finding(
        slot=role,
        outcome=Outcome.VACUOUS,
        why=f"expected {survived[0].name} to be judged {due}; found {' and '.join([*told, *more])} judged to be right: "
        f"a gradient that is wrong like this would have passed too; nothing is said of the candidate",
        diagnosis="mutants survive",
    )


def outcomes_in(channel: ChannelSeen, mutant: Mutant, wanted: list[Expected], judge: Judge) -> Iterator[Outcome]:
    """All that is concluded of a mutant's slots in one channel; nothing where it could not be applied."""
    for phase in channel.phases:
        if phase.mutant != mutant.name:
            continue
        altered = as_if_found(channel, phase, mutant)
        if altered is None:
            continue
        experts = {slot.expert for slot in phase.slots}
        for one in wanted:
            there = (one.role, one.microbatch, one.phase) == (mutant.role, phase.microbatch, phase.phase)
            if there and (not experts or one.expert in experts):
                yield from (judgement.outcome for judgement in judge(one, altered))


def as_if_found(channel: ChannelSeen, mutated: PhaseSeen, mutant: Mutant) -> ChannelSeen | None:
    """The channel with a mutant's slots in the place of those found; where it has none, all of its role are gone.

    None where nothing was found in that phase: an altered file can say so, and proves nothing.
    """

    def key(slot: SlotSeen) -> tuple[int, str]:
        return slot.expert, slot.buffer

    alike = (one for one in channel.phases if (one.microbatch, one.phase) == (mutated.microbatch, mutated.phase))
    found = next((one for one in alike if not one.mutant), None)
    if found is None:
        return None
    own = {key(slot): slot for slot in found.slots if slot.role == mutant.role} if mutated.slots else {}
    own |= {key(slot): slot for slot in mutated.slots}
    seen = msgspec.structs.replace(found, slots=list(own.values()))
    return msgspec.structs.replace(channel, phases=[seen])
