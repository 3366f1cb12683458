"""How much does the oracle see? Counts, case by case, the faults that were put in and those that were seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradcheck_cli.judge.contract import expected
from gradcheck_cli.judge.proof import outcomes_in
from gradcheck_cli.judge.slots import judge_slot
from gradcheck_cli.records.battery import FAULTS, MUTANTS, Mutant
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import DtypeName
from gradcheck_cli.records.observation import FILLS, Fill, Observation, Role
from gradcheck_cli.records.roles import is_chain
from gradcheck_cli.records.sensitivity import Ended, Seen, Sensitivity, Smallest
from gradcheck_cli.records.verdict import Outcome, Verdict


class Tally:
    """What was put in and what was seen, case by case."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.of: Counter[tuple[str, Fill]] = Counter()
        self.killed: Counter[tuple[str, Fill]] = Counter()
        self.seen_from: dict[tuple[DtypeName, bool, Fill], list[int]] = {}  # one entry for each gradient of each case

    def add(self, case: Case, seen: Observation, verdict: Verdict) -> None:
        """Count one case; what did not run has nothing to be altered."""
        self.verdicts.append(verdict)
        for channel in seen.channels:
            steps: dict[Role, dict[int, bool]] = {}
            for mutant, killed in _tried(case, seen, channel.fill):
                name = (mutant.fault.name, channel.fill)
                self.of[name] += 1
                self.killed[name] += killed
                if mutant.fault.roundings:
                    steps.setdefault(mutant.role, {})[mutant.fault.roundings] = killed
            of = (case.dtype, is_chain(case), channel.fill)
            self.seen_from.setdefault(of, []).extend(map(_seen_from, steps.values()))

    def told(self, endings: list[Ended], seconds: float) -> Sensitivity:
        """All of it as a record."""
        asked = [verdict for verdict in self.verdicts if verdict.outcome is not Outcome.EXCLUDED]
        executed = [verdict for verdict in self.verdicts if verdict.outcome.executed]
        judged = [verdict for verdict in executed if verdict.outcome.gravity < Outcome.RAISED.gravity]
        proofs = [verdict.mutants for verdict in judged if verdict.mutants]
        return Sensitivity(
            asked=len(asked),
            cases=len(judged),
            passed=sum(verdict.outcome.green for verdict in judged),
            ended_early=len(executed) - len(judged),
            killed=sum(one.killed for one in proofs),
            of=sum(one.of for one in proofs),
            survived=[
                f"{name} in {verdict.case}"
                for verdict in judged
                for name in (verdict.mutants.survived if verdict.mutants else [])
                if MUTANTS[name].fault.required
            ],
            seen=[
                Seen(
                    fault=fault.name,
                    cites=fault.cites,
                    summary=fault.summary,
                    killed={fill: self.killed[fault.name, fill] for fill in FILLS if self.of[fault.name, fill]},
                    of={fill: self.of[fault.name, fill] for fill in FILLS if self.of[fault.name, fill]},
                )
                for fault in FAULTS
            ],
            smallest=[_smallest(*of, found) for of, found in sorted(self.seen_from.items()) if found],
            endings=endings,
            seconds=seconds,
        )


def _tried(case: Case, seen: Observation, fill: Fill) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant that could be applied in a channel, and whether it got an outcome that it deserves."""
    channel = next(channel for channel in seen.channels if channel.fill == fill)
    wanted = expected(case)
    for name in dict.fromkeys(phase.mutant for phase in channel.phases if phase.mutant):
        mutant = MUTANTS[name]
        outcomes = set(outcomes_in(channel, mutant, wanted, lambda slot, altered: judge_slot(case, slot, altered)))
        yield mutant, bool(outcomes & set(mutant.fault.deserves))


def _seen_from(steps: dict[int, bool]) -> int:
    """The smallest step of a gradient's ladder from which on all are seen; 0 where the largest is not."""
    first = 0
    for step, killed in sorted(steps.items(), reverse=True):
        if not killed:
            break
        first = step
    return first


def _smallest(dtype: DtypeName, chain: bool, fill: Fill, found: list[int]) -> Smallest:  # noqa: FBT001
    seen = [step for step in found if step]
    return Smallest(
        dtype=dtype,
        fill=fill,
        chain=chain,
        best=min(seen, default=0),
        worst=max(seen, default=0),
        gradients=len(found),
        blind=len(found) - len(seen),
    )
