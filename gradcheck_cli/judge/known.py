"""Which failures of a run were known before it, and what of that is no longer true?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from gradcheck_cli.expression import Predicate, compile_expression
from gradcheck_cli.judge.narrowing import narrowing
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import failure_of, named, worded
from gradcheck_cli.records.known import CPU, VERSIONED, Complaint, Day, KnownFailure, Placed
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.public import Recorded
from gradcheck_cli.records.report import Run
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict


class Known:
    """The entries of a known file, put to the verdicts of a run."""

    def __init__(self, entries: Sequence[KnownFailure] = ()) -> None:
        self._entries = [(entry, compile_expression(entry.expression)) for entry in entries]

    def marked(self, placed: Placed) -> Verdict:
        """The verdict, with the links of what was known of it; one finding that no entry names, and it has none."""
        red = failures(placed.verdict)
        covering = [entry for entry, holds in self._entries if covers(entry, holds, placed)]
        known = [[entry.link for entry in covering if fits(entry, finding)] for finding in red]
        links = dict.fromkeys(link for found in known for link in found)
        return msgspec.structs.replace(placed.verdict, known="; ".join(links) if all(known) else "")

    def complaints(self, run: Sequence[Placed], *, whole: bool, today: Day) -> list[Complaint]:
        """What of the entries is not true of this run; of one that does not apply where it ran, nothing is said.

        Where the run is not the `whole` of what its matrix holds, an entry without a case may have one in the rest.
        """
        return [told for one in self._entries for told in self._of(one, run, whole=whole, today=today)]

    def _of(
        self,
        one: tuple[KnownFailure, Predicate],
        run: Sequence[Placed],
        *,
        whole: bool,
        today: Day,
    ) -> list[Complaint]:
        entry, holds = one
        if not any(applies(entry, placed.environment) for placed in run):
            return []
        covered = [placed for placed in run if covers(entry, holds, placed)]
        judged = [placed.verdict for placed in covered if says_something(placed.verdict)]
        passed = [verdict for verdict in judged if not failures(verdict)]
        strange = [v for placed, v in zip(covered, map(self.marked, covered), strict=True) if self._strange(entry, v)]
        told = [_expired(entry)] if today > entry.expires else []
        told += [_mended(entry, passed, len(judged))] if passed else []
        told += [_different(entry, strange, len(judged))] if strange else []
        return told + ([_unmatched(entry)] if whole and not covered else [])

    def _strange(self, entry: KnownFailure, marked: Verdict) -> bool:
        """Whether a case failed, and not as the entry says, or not only as the entries say."""
        found = failures(marked) if says_something(marked) else []
        return bool(found) and not (marked.known and any(fits(entry, finding) for finding in found))


def failures(verdict: Verdict) -> list[Finding]:
    """The findings that a gate does not let pass, without those that only say again what another one says."""
    return [finding for finding in verdict.red if not any(_echoes(finding, graver) for graver in verdict.red)]


def _echoes(finding: Finding, graver: Finding) -> bool:
    """Whether it is what integers showed of the same experts, by the same name, seen on random data once more."""
    if (finding.outcome, graver.outcome) != (Outcome.INACCURATE, Outcome.INEXACT):
        return False
    alike = (finding.role, named(finding.diagnosis)) == (graver.role, named(graver.diagnosis))
    return alike and set(finding.experts) <= set(graver.experts)


def says_something(verdict: Verdict) -> bool:
    """Whether a case came far enough to tell of a failure: what was refused, left out or never ran, did not."""
    return verdict.outcome not in (Outcome.EXCLUDED, Outcome.REFUSED, Outcome.UNTESTED)


def covers(entry: KnownFailure, holds: Predicate, placed: Placed) -> bool:
    """Whether a case, where it ran, is one of those that the entry is about."""
    return applies(entry, placed.environment) and holds(placed.case)


def fits(entry: KnownFailure, finding: Finding) -> bool:
    """Whether a finding is the failure that the entry names: what it does not name, the finding must not have."""
    of_role = finding.role if finding.role in ROLES else None
    said = failure_of(finding).said
    heard = worded(entry.message) in said if entry.message else not said
    alike = (of_role, finding.outcome, named(finding.diagnosis)) == (entry.role, entry.outcome, named(entry.diagnosis))
    return alike and heard


def applies(entry: KnownFailure | Recorded, environment: Environment) -> bool:
    """Whether an entry is about such an environment; what is not there, or has no version that can be read, is not."""
    if entry.architecture and architecture(environment) not in entry.architecture:
        return False
    return all(_within(environment.versions.get(VERSIONED[name], ""), text) for name, text in entry.versions.items())


def architecture(environment: Environment) -> str:
    """`sm90`; `cpu` where no GPU was used."""
    return "sm{}{}".format(*environment.compute_capability) if environment.compute_capability else CPU


def whole(run: Run, verdicts: Sequence[Verdict]) -> bool:
    """Whether every case of the matrix was asked for and came to its turn."""
    never_ran = any(verdict.worst and verdict.worst.outcome is Outcome.UNTESTED for verdict in verdicts)
    return bool(run.matrix) and not narrowing(run) and not never_ran


def _within(version: str, specifier: str) -> bool:
    try:
        # NVIDIA's containers have pre-releases, and they are what is asked about.
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _mended(entry: KnownFailure, passed: list[Verdict], of: int) -> Complaint:
    todo = "remove the entry (`gradcheck known prune RUN` names it)"
    if len(passed) < of:
        todo = "narrow its expression or its versions to the cases that still fail"
    return _complaint(entry, "mended", f"found PASSED in {_some(passed, of)}: {todo}", passed)


def _different(entry: KnownFailure, strange: list[Verdict], of: int) -> Complaint:
    found = ", ".join(f"{finding.outcome.value} {_told(finding)}" for finding in failures(strange[0]))
    todo = "look into it as into a new failure, then correct the entry, or add one for what no entry names"
    return _complaint(entry, "different", f"found {found} in {_some(strange, of)}: {todo}", strange)


def _complaint(entry: KnownFailure, kind: str, found: str, verdicts: list[Verdict]) -> Complaint:
    cases = [verdict.case for verdict in verdicts]
    why = f"expected {entry.failure}, {found}"
    return Complaint(place=entry.place, kind="mended" if kind == "mended" else "different", why=why, cases=cases)


def _expired(entry: KnownFailure) -> Complaint:
    why = (
        f"expected an entry that still holds, found one that expired after {entry.expires}: see what became of "
        f"{entry.link}, then give it a later day, or remove it"
    )
    return Complaint(place=entry.place, kind="expired", why=why)


def _unmatched(entry: KnownFailure) -> Complaint:
    why = (
        f"expected a case of this run for which {entry.expression} holds, found none: correct the expression, "
        f"or remove the entry (`gradcheck known prune RUN` names it)"
    )
    return Complaint(place=entry.place, kind="unmatched", why=why)


def _some(verdicts: list[Verdict], of: int) -> str:
    return f"{len(verdicts)} of the {of} cases it covers, first {verdicts[0].case}"


def _told(finding: Finding) -> str:
    named = f"{finding.slot} ({finding.diagnosis})" if finding.diagnosis else finding.slot
    return f"{named}: {said}" if (said := failure_of(finding).said) else named
