"""How does a result go wrong? From the right contribution of one expert to an altered one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from gradcheck_cli.compute.faults import formats
from gradcheck_cli.compute.faults.scene import At, Scene, asleep, busiest
from gradcheck_cli.compute.handed import filling
from gradcheck_cli.compute.lent import WORDS
from gradcheck_cli.compute.provider import DTYPES
from gradcheck_cli.records.battery import LADDER
from gradcheck_cli.records.dtype import FORMATS
from gradcheck_cli.records.observation import POISON_BYTES
from gradcheck_cli.records.roles import BY_TOKEN, WEIGHTS, is_chain
from gradcheck_cli.records.splits import TAIL

Alter = Callable[[At], torch.Tensor]

GARBAGE = 1e-3  # of the largest element of an expert with tokens
BLOCK = 16


@dataclass(frozen=True)
class Value:
    """An alteration, and whose: the busiest expert's, that of the two busiest, or of one without tokens."""

    alter: Alter
    where: Literal["busy", "pair", "empty"] = "busy"

    def altered(self, scene: Scene) -> dict[int, torch.Tensor]:
        """Expert -> its contribution as the fault has it; of no expert where there is none to alter."""
        experts = busiest(scene.case, scene.microbatch, by_now=is_chain(scene.case))
        awake = [i for i in experts if not asleep(scene.case, scene.role, i)]
        if not awake:
            return {}
        first, *others = awake
        other = others[0] if others else first
        empty = [i for i in sorted(awake) if not scene.tokens[i]]
        if self.where == "empty":
            pairs = [(i, first) for i in empty[:1]]
        elif not scene.tokens[first]:
            pairs = []
        elif scene.role == "pgrad":  # one number for each token: those of an expert with few may happen to be small
            pairs = [(i, other) for i in awake if scene.tokens[i]]
        else:
            pairs = [(first, other), (other, first)][: 2 if self.where == "pair" else 1]
        return {i: self.alter(At(scene, i, j, scene.parts[i].contiguous().clone())) for i, j in pairs}


def scaled(factor: float) -> Value:
    """Times a number."""
    return Value(lambda at: at.part * factor)


def one_roundoff(roundings: int) -> Value:
    """So many unit roundoffs of the dtype more, relative to the gradient as it stands after this microbatch."""

    def alter(at: At) -> torch.Tensor:
        return at.part + roundings * FORMATS[at.scene.case.dtype].unit_roundoff * at.scene.so_far(at.expert)

    return Value(alter)


def one_element(number: float) -> Value:
    """One element of the last row."""

    def alter(at: At) -> torch.Tensor:
        at.part.view(-1)[-min(3, at.part.numel()) :][:1] = number
        return at.part

    return Value(alter)


def uninitialised(byte: int) -> Value:
    """The last quarter of the elements are these bytes."""

    def alter(at: At) -> torch.Tensor:
        dtype = DTYPES[at.scene.case.dtype]
        pattern = torch.full((dtype.itemsize,), byte, dtype=torch.uint8, device=at.part.device).view(dtype)
        at.part.view(-1)[-max(1, at.part.numel() // 4) :] = pattern.double()
        return at.part

    return Value(alter)


def one_ulp(at: At) -> torch.Tensor:
    """The largest element of what is stored, one unit in the last place larger."""
    held = at.scene.stored[at.expert]
    if held is None:
        return at.part
    largest = held.reshape(-1)[held.abs().reshape(-1).argmax()].reshape(1)
    larger = (largest.view(WORDS[held.element_size()]) + 1).view(held.dtype)
    at.part.view(-1)[held.abs().reshape(-1).argmax()] += (larger.double() - largest.double())[0]
    return at.part


def without_the_last_token(at: At) -> torch.Tensor:
    """A row less, or a row's share less."""
    if at.scene.role in BY_TOKEN:
        at.part[-1] = 0
        return at.part
    x, g = at.scene.rows(at.expert)
    return at.part - (torch.outer(g[-1], x[-1]) if at.scene.role in WEIGHTS else g[-1])


def without_the_tail(at: At) -> torch.Tensor:
    """The last eighth of the contraction left out, at least one product of each sum."""
    a, b = at.scene.factors(at.expert)
    last = max(1, len(b) // 8)
    return at.part - a[:, -last:] @ b[-last:]


def swapped(at: At) -> torch.Tensor:
    """What belongs to another expert; of rows as many as both have."""
    rows = min(len(at.part), len(at.scene.parts[at.other]))
    at.part[:rows] = at.scene.parts[at.other][:rows]
    return at.part


def of_another_weight(at: At) -> torch.Tensor:
    """Another expert's weight in the product."""
    a, b = at.scene.factors(at.expert)
    return at.part + a @ (at.scene.factors(at.other)[1] - b)


def of_the_weight_before(at: At) -> torch.Tensor:
    """The weight before the last step of an optimizer in the product; the right one where none was taken."""
    before = at.scene.weight_before
    if before is None:
        return at.part
    a, b = at.scene.factors(at.expert)
    return at.part + a @ (replace(at.scene, weight=before).factors(at.expert)[1] - b)


def last_row_repeated(at: At) -> torch.Tensor:
    """The last row as the one before it."""
    at.part[-1] = at.part[max(0, len(at.part) - 2)]
    return at.part


def into_the_first_row(at: At) -> torch.Tensor:
    """Every row written to the first place: the last one stays there, and the others hold nothing."""
    altered = torch.zeros_like(at.part)
    altered[0] = at.part[-1]
    return altered if len(at.part) > 1 else at.part


def block_transposed(at: At) -> torch.Tensor:
    """A square block in the corner."""
    side = min(BLOCK, *at.part.shape)
    at.part[:side, :side] = at.part[:side, :side].T.clone()
    return at.part


def misaligned(at: At) -> torch.Tensor:
    """Token t of grad_output with token t + 1 of x."""
    x, g = at.scene.rows(at.expert)
    return at.part + (g.roll(1, 0) - g).T @ x


def as_before(at: At) -> torch.Tensor:
    """The microbatch before this one; of rows as many as both have."""
    if not at.scene.earlier:
        return at.part
    before = at.scene.earlier[-1][at.expert]
    rows = min(len(at.part), len(before))
    at.part[:rows] = before[:rows]
    return at.part


def bias_times(factor: float) -> Value:
    """So many biases more."""
    return Value(lambda at: at.part if at.scene.bias is None else at.part + factor * at.scene.bias[at.expert].double())


def a_row_too_many(at: At) -> torch.Tensor:
    """A row that stands for the padding after an expert's own."""
    return at.part + at.scene.rows(at.expert)[1][0]


def tail_read(at: At) -> torch.Tensor:
    """The rows past sum(m_splits) as if they were the expert's own."""
    number = filling(at.scene.case)
    return at.part + TAIL * (number**2 if at.scene.role in WEIGHTS else number) if number else at.part


def garbage(at: At) -> torch.Tensor:
    """A small number beside what an expert with tokens has."""
    return at.part + GARBAGE * at.scene.parts[at.other].abs().max()


VALUES: dict[str, Value] = {
    "zeroed": scaled(0),
    "doubled": scaled(2),
    "halved": scaled(0.5),
    "scaled_down": scaled(2.0**-7),
    "one_percent": scaled(1.01),
    "one_ulp": Value(one_ulp),
    **{f"epsilon_{roundings}": one_roundoff(roundings) for roundings in LADDER},
    "token_dropped": Value(without_the_last_token),
    "tail_missing": Value(without_the_tail),
    "experts_swapped": Value(swapped, "pair"),
    "other_weight": Value(of_another_weight),
    "stale_weight": Value(of_the_weight_before, "pair"),
    "rows_rolled": Value(lambda at: at.part.roll(1, 0)),
    "row_repeated": Value(last_row_repeated),
    "rows_into_first": Value(into_the_first_row),
    "block_transposed": Value(block_transposed),
    "memory_transposed": Value(lambda at: at.part.reshape(at.part.T.shape).T),
    "tokens_misaligned": Value(misaligned),
    "garbage_in_empty": Value(garbage, "empty"),
    "nan_in_empty": Value(lambda at: at.part * torch.nan, "empty"),
    "nan": one_element(torch.nan),
    "inf": one_element(torch.inf),
    "uninitialised_71": uninitialised(POISON_BYTES["0x71"]),
    "uninitialised_ff": uninitialised(POISON_BYTES["0xFF"]),
    "stale": Value(as_before),
    "bias_missing": bias_times(-1),
    "bias_twice": bias_times(1),
    "padding_row": Value(a_row_too_many),
    "tail_read": Value(tail_read),
    "summed_in_bf16": Value(formats.summed_in_bf16),
    "operands_in_bf16": Value(formats.operands_in_bf16),
    "operands_in_fp16": Value(formats.operands_in_fp16),
    "result_in_fp16": Value(formats.result_in_fp16),
    "flushed": Value(formats.flushed),
}
