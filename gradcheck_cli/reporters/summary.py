"""What is said of a run in one line each?"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from gradcheck_cli.records.battery import MUTANTS
from gradcheck_cli.records.coverage import Covered, Pairs
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.report import Report, Run, Tally
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict

_EXIT_CODES = {
    0: "every executed case green and the floor met",
    1: "findings",
    2: "the command or a file it names cannot be understood, or is not on this machine",
    3: "gradcheck itself or its reference failed",
    4: "a known failure is fixed, stale or expired",
    5: "nothing was executed, or less than the floor",
    130: "interrupted; everything up to then is on disk",
}
_MOST_GAPS = 8
# In the order in which a maintainer asks for them; what is not listed follows.
_VERSIONS = ("torch", "transformer_engine", "cuda", "cublaslt", "cudnn", "driver", "python")


def title(run: Run) -> str:
    """`gradcheck 0.1.0: core matrix of te`."""
    asked = f"{run.matrix} matrix" if run.matrix else "named cases"
    return f"gradcheck {run.gradcheck}: {asked} of {', '.join(run.provider)}"


def headline(tally: Tally) -> str:
    """What was executed out of what was asked, and every outcome with its count; apart from them what was not asked."""
    said = [f"executed {tally.executed} of {tally.asked} asked ({percent(tally.share)})"]
    left_out = Outcome.EXCLUDED.value
    if asked := {outcome: count for outcome, count in tally.outcomes.items() if outcome != left_out}:
        said.append(counts(asked))
    if left_out in tally.outcomes:
        said.append(f"not asked: {tally.outcomes[left_out]} {left_out}")
    return " · ".join(said)


def gaps(covered: Sequence[Covered]) -> str:
    """The axis values of which nothing, or less than half, was executed; "" where there are none.

    `hardly executed: dtype=fp32 0 of 20 · m_splits_as=list 3 of 14`
    """
    least = sorted((one for one in covered if 2 * one.executed < one.asked), key=lambda one: one.executed / one.asked)
    told = [f"{one.axis}={one.value} {one.executed} of {one.asked}" for one in least[:_MOST_GAPS]]
    more = [f"{len(least) - _MOST_GAPS} more values in report.json"] if len(least) > _MOST_GAPS else []
    return f"hardly executed: {' · '.join([*told, *more])}" if told else ""


def paired(pairs: Pairs) -> str:
    """`values that stand together in a case: 3,815 of 3,841 pairs executed (99%)`; "" where all were."""
    if pairs.executed >= pairs.asked:
        return ""
    share = percent(pairs.executed / pairs.asked)
    return f"values that stand together in a case: {pairs.executed:,} of {pairs.asked:,} pairs executed ({share})"


def proof(verdicts: Sequence[Verdict]) -> str:
    """`1234 of 1234 faults put into 72 passed cases were seen`; that there were none; "" where nothing passed."""
    if not any(verdict.outcome is Outcome.PASSED for verdict in verdicts):
        return ""
    proved = [verdict.mutants for verdict in verdicts if verdict.mutants]
    killed, of = sum(one.killed for one in proved), sum(one.of for one in proved)
    if not of:
        return "no faults were put into what passed: nothing proves that they would have been seen"
    steps = sum(MUTANTS[name].fault.roundings > 0 for one in proved for name in one.survived if name in MUTANTS)
    others = f"; {steps} of the others are steps of epsilon_*, a measure and no failure" if steps else ""
    cases = f"{len(proved)} passed case{'' if len(proved) == 1 else 's'}"
    return f"{killed} of {of} faults put into {cases} were seen{others}"


def known(verdicts: Sequence[Verdict]) -> str:
    """`36 known failures: 36 MISSING`; "" where there are none."""
    outcomes = [verdict.outcome for verdict in verdicts if verdict.known]
    if not outcomes:
        return ""
    found = {outcome.value: outcomes.count(outcome) for outcome in sorted(set(outcomes), key=lambda one: one.gravity)}
    return f"{len(outcomes)} known failure{'' if len(outcomes) == 1 else 's'}, green here: {counts(found)}"


def counts(outcomes: Mapping[str, int]) -> str:
    """`48 PASSED · 60 REFUSED`."""
    return " · ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def percent(share: float) -> str:
    """Rounded down: a share just under the floor must not look as if it met it."""
    return f"{math.floor(share * 100 + 1e-9)}%"


def floor(report: Report) -> str:
    """Whether enough was executed for a green run to mean something."""
    found, demanded = percent(report.tally.share), f"{report.run.min_executed * 100:g}%"
    if report.floor_met:
        return f"floor met: {found} executed, at least {demanded} demanded"
    told = f"{found} executed, expected at least {demanded}"
    if not report.tally.executed:
        told = "nothing was executed, expected at least one case"
    return f"floor NOT MET: {told}; {_way_to_the_floor(report)}"


def _way_to_the_floor(report: Report) -> str:
    """What kept cases from being executed, and so what to do: only what is true of this run."""
    early = sum(verdict.worst is not None and _never_judged(verdict.worst) for verdict in report.verdicts)
    refused = ["open what was REFUSED"] if report.tally.outcomes.get(Outcome.REFUSED.value) else []
    if early:
        cases = f"{early} case{'' if early == 1 else 's'}"
        told = f"the run ended before {cases} could be judged: go on with --resume and its folder"
        return "; ".join([told, *refused])
    if report.tally.executed:
        return ", or ".join([*refused, "ask for less with --min-executed"])
    return ", or ".join(["select cases that this machine can run", *refused])


def _never_judged(finding: Finding) -> bool:
    """Whether the run ended before the case: a slot that was left out is UNTESTED too, of a case that did run."""
    return finding.outcome is Outcome.UNTESTED and finding.slot == "case"


def exit_meaning(code: int) -> str:
    """`1: findings`."""
    return f"{code}: {_EXIT_CODES.get(code, 'unknown')}"


def environment_facts(environment: Environment) -> dict[str, str]:
    """Device and versions by name, those that are not there left out."""
    device = environment.device_name or environment.device
    if environment.compute_capability:
        device += " (sm_{}{})".format(*environment.compute_capability)
    names = [*_VERSIONS, *(name for name in environment.versions if name not in _VERSIONS)]
    return {"device": device} | {name: environment.versions[name] for name in names if environment.versions.get(name)}


def environment_line(environment: Environment) -> str:
    """`NVIDIA H200 (sm_90) · torch 2.13.0 · transformer_engine 2.17.1 · ...`."""
    facts = environment_facts(environment)
    device = facts.pop("device")
    return " · ".join([device, *(f"{name} {version}" for name, version in facts.items())])


def reproducer(case: str) -> str:
    """The command that runs one case, always in quotes: an id must survive any shell."""
    quoted = shlex.quote(case)
    return f"gradcheck run --case '{case}'" if quoted == case else f"gradcheck run --case {quoted}"
