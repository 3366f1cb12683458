"""What is a fault called by those who have never heard of gradcheck? Plain words for roles, findings, axes and data."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gradcheck_cli.records.failure import without_numbers
from gradcheck_cli.records.roles import CHAIN
from gradcheck_cli.records.rule import Term
from gradcheck_cli.records.verdict import Finding, Outcome
from gradcheck_cli.reporters.marks import code, escaped_part
from gradcheck_cli.reporters.plain_text import excerpt, one_line
from gradcheck_cli.reporters.rules import condition

ROLES = {
    "fprop": "output",
    "dgrad": "input gradient (dgrad)",
    "wgrad": "weight gradient (wgrad)",
    "bgrad": "bias gradient (bgrad)",
    "wgrad_fc2": "weight gradient of the second layer (wgrad_fc2)",
    "pgrad": "gradient of the probabilities (pgrad)",
}
# Arguments of the layer that are true or false.
SWITCHES = ("single_grouped_weight", "fuse_wgrad_accumulation", "bias")
_OP_SAYS = {"fuse_wgrad_accumulation": "accumulate_into_main_grad"}
_LONGEST_WHY = 1_000

_OF_A_GRADIENT = {
    Outcome.MISSING: "no {role}",
    Outcome.MISPLACED: "{role} in another buffer than it belongs into",
    Outcome.NONFINITE: "NaN or infinity in the {role}",
    Outcome.UNEXPECTED: "{role}: something is changed that must not be",
    Outcome.INEXACT: "wrong {role}",
    Outcome.INACCURATE: "inaccurate {role}",
    Outcome.PROTOCOL: "{role}: its flag, shape or dtype is wrong",
    Outcome.NONDETERMINISTIC: "{role} differs between two runs",
    Outcome.VACUOUS: "{role}: the comparison could not have failed",
    Outcome.UNTESTED: "{role} could not be compared",
}
_OF_A_CASE = {
    Outcome.RAISED: "an exception in place of gradients",
    Outcome.TIMED_OUT: "it does not come to its end",
    Outcome.CRASHED: "the process dies",
    Outcome.NOT_THE_CASE: "something else runs than was asked for",
}
# What an axis is, where its name is no argument of the layer and does not say it.
_GLOSS = {
    "path": {
        "native": "the grouped GEMM: `NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM=1`, or `use_grouped_tensor=True` "
        "from 2.19 on",
        "legacy": "a GEMM for each expert",
        "cutlass": "the legacy path with `NVTE_USE_CUTLASS_GROUPED_GEMM=1`",
    },
    "grad_output": {"expanded": "`y.sum().backward()`, whose gradient of y is ones with strides 0"},
    "m_splits": {
        "uneven": "different numbers of tokens",
        "empty_middle": "no tokens for an expert in the middle",
        "all_empty": "no tokens at all",
    },
}
_WHERE = re.compile(r" \(after the (\w+) of microbatch (\d+), (exact|range|random) data\)$")
_DATA = {
    "exact": "small integers times a power of two, where nothing rounds",
    "range": "integers whose only rounding is that of the result",
    "random": "normally distributed data",
}
_IN_UNITS = re.compile(r"expected (\S+), found (\S+) at \[([^]]+)\], in units of 2\^(-?\d+)")
_AT = re.compile(r"(expected \S+, found \S+) at \[(\d+), (\d+)\]")
_ERROR = re.compile(r"an error is (\S+) times its bound; ")
_RAISED = re.compile(r"the candidate raised (?P<type>\S+) in (?P<during>[^:]*): (?P<words>.*)", re.DOTALL)


def fault(role: str, outcome: Outcome, diagnosis: str = "") -> str:
    """`no weight gradient (wgrad)`; with what a wrong value was recognised as."""
    named = ROLES.get(role)
    said = _OF_A_GRADIENT.get(outcome) if named else None
    said = said.format(role=named) if said else _OF_A_CASE.get(outcome, "it fails")
    tells = diagnosis and outcome not in (Outcome.MISSING, Outcome.RAISED)
    return f"{said}, {without_marks(diagnosis)}" if tells else said


def without_marks(diagnosis: str) -> str:
    """A diagnosis whose numbers differ between cases: `scaled by ...`."""
    return diagnosis.replace("#", "...")


def raised(why: str) -> str:
    """`RuntimeError in backward: Invalid strides/sizes ...` of what is said of an exception; "" of anything else."""
    found = _RAISED.search(one_line(why))
    if not found:
        return ""
    during = re.sub(r" of microbatch.*|, (exact|range|random) data.*", "", found["during"])
    return f"{found['type']} in {during}: {found['words']}"


def seen(finding: Finding, axes: Mapping[str, str | int]) -> str:
    """What a maintainer would see: `.grad` stays None, or numbers and the data they were found on; in Markdown."""
    if finding.outcome is Outcome.MISSING and finding.diagnosis in ("none", "untouched"):
        buffer = _buffer(finding, axes)
        if finding.diagnosis == "untouched":
            return f"{code(buffer)} keeps what it held before backward"
        # A main_grad was attached before: it did not stay what it was.
        return f"{code(buffer)} {'is' if buffer == 'y' or buffer.endswith('main_grad') else 'stays'} None"
    if said := raised(finding.why):
        return code(excerpt(said, _LONGEST_WHY))
    return prose(excerpt(numbers(finding.why), _LONGEST_WHY))


def prose(text: str) -> str:
    """Foreign text in Markdown: its identifiers as code, since escapes inside them would be copied along."""
    parts = re.split(r"([\w.]*\w_\w[\w.]*(?:=\w+)?)", text)
    return "".join(code(part) if i % 2 else escaped_part(part) for i, part in enumerate(parts))


def has_numbers(finding: Finding) -> bool:
    """Whether what is said of it holds of one case alone."""
    return finding.outcome is not Outcome.MISSING and without_numbers(finding.why) != finding.why


def _buffer(finding: Finding, axes: Mapping[str, str | int]) -> str:
    weights = {"wgrad": "weight", "wgrad_fc2": "fc2.weight"}
    if finding.role in weights:
        return f"{weights[finding.role]}.{'main_grad' if axes.get('fuse_wgrad_accumulation') else 'grad'}"
    return {"fprop": "y", "dgrad": "x.grad", "pgrad": "probs.grad"}.get(finding.role, "bias.grad")


def numbers(why: str) -> str:
    """What was found, as a reader would compute it: units taken into the numbers, places and data in words."""
    where = _WHERE.search(why)
    said = why[: where.start()] if where else why
    said = _IN_UNITS.sub(_converted, said)
    said = _AT.sub(r"\1 in row \2, column \3", said)
    said = _ERROR.sub(r"an error is \1 times what roundings may add up to; ", said)
    said = said.replace("its prefill, bit for bit", "what was put there before").replace("its prefill", "what it held")
    if not where:
        return said
    return f"{said}; after the {where[1]} of microbatch {int(where[2]) + 1}, on {_DATA[where[3]]}"


def _converted(found: re.Match[str]) -> str:
    try:
        expected, seen = (float(found[i]) * 2.0 ** int(found[4]) for i in (1, 2))
    except (ValueError, OverflowError):
        return found.group()
    return f"expected {expected:.9g}, found {seen:.9g} at [{found[3]}]"


def term(one: Term, api: str = "") -> str:
    """`single_grouped_weight=True`, as Python has it; any other condition as `-k` takes it."""
    if one.axis in SWITCHES and len(one.values) == 1:
        return value(one.axis, one.values[0], api)
    return condition([one])


def value(axis: str, held: str | int, api: str = "") -> str:
    """`fuse_wgrad_accumulation=True`, under the name that the API has for it."""
    name = _OP_SAYS.get(axis, axis) if api in ("op", CHAIN) else axis
    return f"{name}={plain(axis, held)}"


def plain(axis: str, held: str | int) -> str:
    """A value of an axis as Python has it."""
    return str(bool(int(held))) if axis in SWITCHES and str(held) in ("0", "1") else str(held)


def meaning(axis: str, held: str | int) -> str:
    """What a value of an axis is, where its name is no argument of the layer; "" where it says it; in Markdown."""
    return _GLOSS.get(axis, {}).get(str(held), "")


def told(axis: str, held: str | int, *, named: bool = True) -> str:
    """`path=native` (the grouped GEMM ...): a value with what it means, in Markdown."""
    said = code(value(axis, held)) if named else plain(axis, held)
    return f"{said} ({means})" if (means := meaning(axis, held)) else said
