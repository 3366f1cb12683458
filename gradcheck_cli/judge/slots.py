"""What deserves each gradient that must exist? Every slot of the contract, in every channel that was run."""

from __future__ import annotations

from gradcheck_cli.judge.accuracy import accuracy
from gradcheck_cli.judge.bounds import LAMBDA
from gradcheck_cli.judge.contract import BEFORE, NOTHING, Expected, expected
from gradcheck_cli.judge.judgement import Judgement
from gradcheck_cli.judge.presence import Buffers, absent, early, moved, nothing, protocol
from gradcheck_cli.judge.repeats import runs
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, ChannelSeen, Observation, Phase
from gradcheck_cli.records.roles import WEIGHTS
from gradcheck_cli.records.verdict import Outcome

Judged = tuple[Expected, ChannelSeen, Judgement]
_UNSEEN = Judgement(outcome=Outcome.UNTESTED, why="expected an observation of this slot; found none")


def judge_slots(case: Case, observation: Observation, lambda_: float = LAMBDA) -> list[Judged]:
    """Every slot that the contract names, in every channel that was run; UNTESTED where nothing was seen of it."""
    run = [channel for channel in observation.channels if not channel.inapplicable]
    wanted = expected(case)
    judged = [
        (slot, one, j)
        for channel in run
        for one in runs(channel)
        for slot in wanted
        for j in judge_slot(case, slot, one, lambda_)
    ]
    told = {key(slot) for slot, _, j in judged if j.outcome is not Outcome.VACUOUS}
    # What one channel cannot tell, another may: thin exact data can leave a small slot all zero.
    judged = [row for row in judged if row[2].outcome is not Outcome.VACUOUS or key(row[0]) not in told]
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


def judge_slot(case: Case, wanted: Expected, channel: ChannelSeen, lambda_: float = LAMBDA) -> list[Judgement]:
    """All that is wrong with one slot in one channel, or one PASSED."""
    seen = buffers(wanted, channel)
    both = wanted.role in WEIGHTS and wanted.content != BEFORE
    looked_at = ("grad", "main_grad") if both else (wanted.buffer,)
    if not all(buffer in seen for buffer in looked_at):
        return [_UNSEEN]
    if wanted.content == NOTHING:
        return [nothing(case, seen)]
    if wanted.phase == "step":
        return [moved(case, wanted, seen[wanted.buffer])]
    if wanted.content == BEFORE:
        return [early(wanted, seen[wanted.buffer])]
    away = absent(case, wanted, seen)
    if away:
        return [away]
    shape = protocol(case, wanted, seen)
    judged = [*shape, accuracy(case, wanted, seen[wanted.buffer], channel, lambda_)]
    wrong = [judgement for judgement in judged if judgement.outcome is not Outcome.PASSED]
    return wrong or judged


def buffers(wanted: Expected, channel: ChannelSeen) -> Buffers:
    """Everything seen of the wanted gradient, in whichever buffer, at the end of the wanted phase."""
    at = ("", wanted.microbatch, wanted.phase)
    phases = [p for p in channel.phases if (p.mutant, p.microbatch, p.phase) == at]
    slots = [slot for phase in phases for slot in phase.slots]
    return {slot.buffer: slot for slot in slots if (slot.role, slot.expert) == (wanted.role, wanted.expert)}


def key(wanted: Expected) -> tuple[str, int, Phase]:
    """What a slot is called, whatever the channel."""
    return wanted.slot, wanted.microbatch, wanted.phase
