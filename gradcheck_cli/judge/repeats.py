"""Do runs on the same data leave the same bits? How often they do not, and by how much; a fault where it was asked."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import DATA, INFINITE, ChannelSeen, Observation, Phase, Repeated
from gradcheck_cli.records.verdict import Finding, Outcome

# Of the normal distribution, for a two-sided interval of 95 %.
Z = 1.959964


def runs(channel: ChannelSeen) -> Iterator[ChannelSeen]:
    """The channel as each run alone would have been seen: the first, and each that was not the same all through.

    A phase in which a later run was as the first is seen once, and is of both.
    """
    for run in sorted({0, *(phase.repeat for phase in channel.phases)}):
        own = {(one.microbatch, one.phase, one.mutant) for one in channel.phases if one.repeat == run}
        phases = [
            one
            for one in channel.phases
            if one.repeat == run or (not one.repeat and (one.microbatch, one.phase, one.mutant) not in own)
        ]
        yield msgspec.structs.replace(channel, phases=phases)


def which(channel: ChannelSeen, microbatch: int, phase: Phase) -> str:
    """`, repeat 3` where what such a channel holds of a phase is that of a later run; else nothing."""
    seen = (one.repeat for one in channel.phases if (one.microbatch, one.phase, one.mutant) == (microbatch, phase, ""))
    run = next(seen, 0)
    return f", repeat {run}" if run else ""


def nondeterministic(case: Case, observation: Observation) -> list[Finding]:
    """NONDETERMINISTIC for each role of which not all runs left the same bits, where the case asks for determinism."""
    if not case.deterministic:
        return []
    return [
        Finding(
            slot=worst.worst or worst.role,
            outcome=Outcome.NONDETERMINISTIC,
            why=f"expected the same bits in each of {worst.repeats + 1} runs, since determinism was asked for; found "
            f"{_in_words(seen)}",
            diagnosis="differs between runs",
            experts=sorted({expert for _, one in seen for expert in one.experts}),
        )
        for seen in _differing(observation)
        for _, worst in seen[:1]
    ]


def repeats_in_words(case: Case, observation: Observation) -> list[str]:
    """A note of what the repeats showed, for a case that asks for no determinism or was seen to have it."""
    if case.repeat == 1 or not any(channel.repeated for channel in observation.channels):
        return []
    differing = _differing(observation)
    if not differing:
        _, most = wilson(0, case.repeat - 1)
        return [
            f"repeat={case.repeat}: all runs left the same bits; a share of runs below {most:.0%} that differ may go "
            "unseen so, at a confidence of 95 %"
        ]
    if case.deterministic:
        return []
    return [
        f"repeat={case.repeat}: {seen[0][1].role} is not the same in all runs, and no determinism was asked for: "
        f"{_in_words(seen)}"
        for seen in differing
    ]


def wilson(hits: int, tries: int) -> tuple[float, float]:
    """The 95 % interval of a rate seen as hits of tries, by E. B. Wilson's score (JASA 22, 1927, pages 209 to 212)."""
    rate, square = hits / tries, Z * Z
    middle = (rate + square / (2 * tries)) / (1 + square / tries)
    half = Z / (1 + square / tries) * math.sqrt(rate * (1 - rate) / tries + square / (4 * tries * tries))
    return max(0.0, middle - half), min(1.0, middle + half)


def _differing(observation: Observation) -> list[list[tuple[ChannelSeen, Repeated]]]:
    """Each role that differs, with the channels in which it does: the one with the most runs that differ first."""
    by_role: dict[str, list[tuple[ChannelSeen, Repeated]]] = {}
    for channel in observation.channels:
        for one in channel.repeated:
            if one.differing:
                by_role.setdefault(one.role, []).append((channel, one))
    return [sorted(seen, key=lambda row: -row[1].differing) for seen in by_role.values()]


def _in_words(seen: list[tuple[ChannelSeen, Repeated]]) -> str:
    return "; ".join(_of_channel(channel, one) for channel, one in seen)


def _of_channel(channel: ChannelSeen, one: Repeated) -> str:
    least, most = wilson(one.differing, one.repeats)
    far = "by more than a finite number" if one.largest_ulps >= INFINITE else f"by up to {one.largest_ulps:g} ulp"
    return (
        f"{one.differing} of {one.repeats} repeats unlike the first on {DATA[channel.fill]} "
        f"({one.differing / one.repeats:.0%}, 95 % interval {least:.0%} to {most:.0%}), {one.distinct} distinct "
        f"results, {far}"
    )
