"""What is the verdict on a case? Asks the questions in their order and groups the answers into findings."""

from __future__ import annotations

import msgspec

from gradcheck_cli.judge.bounds import LAMBDA
from gradcheck_cli.judge.bystanders import bystanders
from gradcheck_cli.judge.effective import fell_back, not_the_case, raised, ran_all_the_same
from gradcheck_cli.judge.findings import group, margins
from gradcheck_cli.judge.invisible import invisible
from gradcheck_cli.judge.kernels import effective
from gradcheck_cli.judge.last_words import last_words
from gradcheck_cli.judge.proof import proved
from gradcheck_cli.judge.repeats import nondeterministic, repeats_in_words
from gradcheck_cli.judge.slots import judge_slot, judge_slots
from gradcheck_cli.judge.twice import twice
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation, Role
from gradcheck_cli.records.oddity import described
from gradcheck_cli.records.roles import roles_of
from gradcheck_cli.records.verdict import Finding, Margin, Outcome, Verdict, gravest

ENDINGS = {"crashed": Outcome.CRASHED, "timed_out": Outcome.TIMED_OUT}


def conclude(case: Case, observation: Observation, environment: Environment, lambda_: float = LAMBDA) -> Verdict:
    """The verdict: did the request run, did it end, was everything delivered and nothing else written, is it right?

    `lambda_` is what errors on random data are allowed; at most that of the run, for an honest answer.
    """
    verdict = _of_one_try(case, observation, environment, lambda_)
    if observation.again is None:
        return verdict
    return twice(verdict, _of_one_try(case, observation.again, environment, lambda_))


def _of_one_try(case: Case, observation: Observation, environment: Environment, lambda_: float) -> Verdict:
    only = not_the_case(case, observation, environment) or ending(case, observation, environment)
    refusal = fell_back(case, observation, environment)
    if not only and not any(channel.phases for channel in observation.channels):
        only = refusal  # of another layout, which is not run
    if only:
        return _verdict(case, observation, [only], dict.fromkeys(roles_of(case), only.outcome), {})
    judged = judge_slots(case, observation, lambda_)
    told = [*group(judged), *bystanders(observation), *nondeterministic(case, observation)]
    findings = [cited(finding, case, environment) for finding in told]
    findings.sort(key=lambda finding: -finding.outcome.gravity)
    outcomes = [(e.role, j.outcome) for e, _, j in judged] + [(one.role, one.outcome) for one in told]
    roles = {role: gravest([outcome for of, outcome in outcomes if of == role]) for role in roles_of(case)}
    if refusal:  # what ran instead is judged all the same: a refusal is no cover for a wrong gradient
        findings = [*findings, refusal]
        roles = {role: gravest([outcome, refusal.outcome]) for role, outcome in roles.items()}
    verdict = _verdict(case, observation, findings, roles, margins(judged))
    unforeseen = ran_all_the_same(case, observation, environment)
    verdict = msgspec.structs.replace(verdict, notes=[*verdict.notes, *unforeseen])
    return proved(verdict, case, observation, lambda slot, channel: judge_slot(case, slot, channel, lambda_))


def cited(finding: Finding, case: Case, environment: Environment) -> Finding:
    """The finding with what upstream itself says of it, where it does."""
    source = described(case, finding.role, environment)
    return msgspec.structs.replace(finding, why=f"{finding.why}; upstream: {source}") if source else finding


def excluded(case: Case, name: str, why: str) -> Verdict:
    """The verdict on a case that a named constraint leaves out."""
    finding = Finding(slot="case", outcome=Outcome.EXCLUDED, why=why, diagnosis=name)
    return Verdict(case=str(case), axes=case.axes(), outcome=Outcome.EXCLUDED, findings=[finding])


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
    if observation.ending == "lost":
        why = f"expected a result; the worker gave {observation.exit_status}"
        diagnosis = "garbled answer"
    told = last_words(observation.last_output)
    said = f"; its last output: {told}" if told else ""
    # Anything that is not a known ending is a worker that did not give its word: a crash.
    outcome = ENDINGS.get(observation.ending, Outcome.CRASHED)
    return Finding(slot="case", outcome=outcome, why=why + said, diagnosis=diagnosis)


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
        effective=effective(case, observation),
        kernels=observation.kernels,
        channels={channel.fill: channel.inapplicable or "judged" for channel in observation.channels},
        notes=[*invisible(case, observation), *repeats_in_words(case, observation)],
        seconds=observation.seconds,
    )


def untested(case: Case, why: str = "expected the case to run; the run ended before it") -> Verdict:
    """The verdict on a case that was asked for and of which nothing was seen: as a rule it never came to run."""
    finding = Finding(slot="case", outcome=Outcome.UNTESTED, why=why)
    return Verdict(case=str(case), axes=case.axes(), outcome=Outcome.UNTESTED, findings=[finding])
