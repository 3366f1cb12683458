"""Is a candidate let off exactly where it must refuse, and told what opens it?"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli import openings, plugins
from gradcheck_cli.judge.conclude import cited, conclude
from gradcheck_cli.judge.effective import fell_back, not_the_case, raised, ran_all_the_same
from gradcheck_cli.records.capability import Closed, closed, path_taken
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment, Version, version
from gradcheck_cli.records.observation import ChannelSeen, Observation, PhaseSeen, Raised
from gradcheck_cli.records.oddity import described
from gradcheck_cli.records.verdict import Finding, Outcome
from gradcheck_cli.reporters.read import environments, read

TE = ("2.14.1", "2.16.1", "2.17.1", "2.18.0", "2.19.0", "2.20.2")
CUBLAS = ("13.1.0", "13.3.0", "13.5.0")
CAPABILITIES = ((8, 0), (9, 0), (10, 0), (11, 0), (12, 0))
MODULE = [f"te:api=module{path}" for path in (":path=legacy", ":path=native", "")]
ASKED = [
    f"{api}{single}{dtype}"
    for api in (*MODULE, "te:api=op")
    for single in ("", ":single_grouped_weight=1")
    for dtype in ("", ":dtype=fp16", ":dtype=fp32")
]

# Messages as Transformer Engine words them.
ON_HOPPER = (
    "nvte_grouped_gemm_with_discrete_inputA on Hopper (SM90) requires cuBLAS 13.4+, but run-time cuBLAS is 130100"
)
ON_BLACKWELL = "nvte_grouped_gemm requires cuBLAS 13.3+, but run-time cuBLAS version is 130100"
NEEDS_ARGUMENT = "single_grouped_weight=True require use_grouped_tensor=True"
NEEDS_NATIVE = "Single grouped parameters require the native grouped-tensor path"
OP_NEEDS_NATIVE = "Single grouped parameters require the native grouped-tensor GroupedLinear path"
PADDING = (
    "cublaslt_gemm.cu:161 in function CanonicalizeGemmInput: Assertion failed: ret.lda % 16 == 0. Leading dimension "
    "requirement on A for FP8 GEMM. Caller must pad."
)
BLOCKS_PADDING = "Outer dimension requirement on B for NVTE_BLOCK_SCALING GEMM. Caller must pad."
RUNS, LEGACY = "runs", "legacy"
QUANTISED = "recipe={}:m_splits={}:in_features={}:out_features=128"

WHERE = {
    "op in bf16 on Hopper before cuBLAS 13.4": ("2.17.1", (9, 0), "13.1.0", "te:api=op", ON_HOPPER),
    "op in bf16 on Hopper with cuBLAS 13.3": ("2.17.1", (9, 0), "13.3.0", "te:api=op", ON_HOPPER),
    "op in bf16 on Hopper with cuBLAS 13.5": ("2.17.1", (9, 0), "13.5.0", "te:api=op", RUNS),
    "op in fp32 takes the legacy path": ("2.17.1", (9, 0), "13.1.0", "te:api=op:dtype=fp32", RUNS),
    "op of 2.16 on Hopper takes the legacy path": ("2.16.1", (9, 0), "13.1.0", "te:api=op", RUNS),
    "op of 2.16 on Blackwell": ("2.16.1", (10, 0), "13.1.0", "te:api=op", ON_BLACKWELL),
    "op on Ampere takes the legacy path": ("2.18.0", (8, 0), "13.1.0", "te:api=op", RUNS),
    "op on consumer Blackwell takes the legacy path": ("2.18.0", (12, 0), "13.1.0", "te:api=op", RUNS),
    "single weight of the op in fp32": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        "te:api=op:single_grouped_weight=1:dtype=fp32",
        OP_NEEDS_NATIVE,
    ),
    "single weight of the module before the fix is no refusal": (
        "2.17.1",
        (9, 0),
        "13.1.0",
        "te:api=module:path=legacy:single_grouped_weight=1",
        RUNS,
    ),
    "single weight of the module on the legacy path": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        "te:api=module:path=legacy:single_grouped_weight=1",
        NEEDS_ARGUMENT,
    ),
    "single weight of the module in fp32": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        "te:api=module:path=native:single_grouped_weight=1:dtype=fp32",
        NEEDS_NATIVE,
    ),
    "native module of 2.16": ("2.16.1", (9, 0), "13.5.0", "te:api=module:path=native", LEGACY),
    "native module of 2.17 does not ask cuBLAS first": (
        "2.17.1",
        (9, 0),
        "13.1.0",
        "te:api=module:path=native",
        ON_HOPPER,
    ),
    "tokens that nobody padded": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        f"te:api=module:{QUANTISED.format('Float8CurrentScaling', '17,40,0,8', 256)}",
        PADDING,
    ),
    "tokens that nobody padded, in blocks": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        f"te:api=module:{QUANTISED.format('Float8BlockScaling', '17,40,0,8', 256)}",
        BLOCKS_PADDING,
    ),
    "features that nobody padded": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        f"te:api=op:{QUANTISED.format('DelayedScaling', '16,48', 264)}",
        PADDING,
    ),
    "tokens that are padded": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        f"te:api=module:{QUANTISED.format('Float8CurrentScaling', '16,48', 256)}",
        RUNS,
    ),
    "tokens that nobody padded, and no wgrad to sum over them": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        f"te:api=module:{QUANTISED.format('DelayedScaling', '17,40', 256)}:frozen_weights=all",
        RUNS,
    ),
    "a bf16 main_grad beside FP8 operands": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        f"te:api=op:fuse_wgrad=1:main_grad_dtype=bf16:dtype=fp16:{QUANTISED.format('DelayedScaling', '16,48', 256)}",
        RUNS,
    ),
    "an original input that no wgrad needs": (
        "2.20.2",
        (9, 0),
        "13.5.0",
        "te:api=module:recipe=DelayedScaling:save_original_input=1:frozen_weights=all",
        RUNS,
    ),
    "native module of 2.18 asks cuBLAS first": ("2.18.0", (9, 0), "13.1.0", "te:api=module:path=native", LEGACY),
}

# Not the words of the row, though the row is due.
OTHER_WORDS = {
    "an internal error": "CUDA error: an illegal memory access was encountered",
    "out of memory": "CUDA out of memory",
    "another cuBLAS": "FP8 tensor scaling grouped GEMM on Hopper (SM90) requires cuBLAS 13.5+",
    "nothing": "",
}


def where(te: str, capability: Version, cublas: str, **variables: str) -> Environment:
    versions = {"transformer_engine": te, "cublaslt": cublas, "torch": "2.13.0+cu130"}
    return Environment(versions=versions, compute_capability=(capability[0], capability[1]), variables=variables)


def answer(te: Version, here: Version, cublas: Version, case: Case) -> str:
    """What Transformer Engine does, as its sources say: runs what was asked, takes the legacy path, or these words."""
    half, single = case.dtype != "fp32", case.single_grouped_weight
    grouped = (9, 0) <= here <= (11, 0)
    lacks = ON_HOPPER if here < (10, 0) and cublas < (13, 4) else ON_BLACKWELL if cublas < (13, 3) else ""
    if case.api == "op":
        if te >= (2, 19):
            return OP_NEEDS_NATIVE if single and (not half or not grouped or lacks) else RUNS
        chosen = half and (grouped if te >= (2, 17) else here >= (10, 0) and te >= (2, 16))
        return lacks if chosen and lacks else RUNS
    if case.path != "native":
        return NEEDS_ARGUMENT if single and te >= (2, 19) else RUNS
    if te < (2, 17) or ((not half or not grouped or (lacks and te >= (2, 18))) and te < (2, 19)):
        return LEGACY
    if te >= (2, 19) and (not half or not grouped or lacks):
        return NEEDS_NATIVE if single else LEGACY
    return lacks or RUNS


def given(rows: list[Closed]) -> list[str]:
    """The answers that some rows let a candidate off with."""
    words = (ON_HOPPER, ON_BLACKWELL, NEEDS_ARGUMENT, NEEDS_NATIVE, OP_NEEDS_NATIVE, PADDING, BLOCKS_PADDING)
    return [row.falls_back_to or "|".join(said for said in words if re.search(row.says, said)) for row in rows]


def judged(case: Case, here: Environment, message: str, kind: str = "RuntimeError") -> Outcome:
    seen = Raised(type=kind, message=message, during="forward of microbatch 0", traceback="")
    return raised(case, Observation(case=str(case), ending="raised"), seen, here).outcome


@pytest.mark.parametrize(("te", "capability", "cublas", "asked", "said"), tuple(WHERE.values()), ids=WHERE)
def test_the_table_says_what_happens(te: str, capability: Version, cublas: str, asked: str, said: str) -> None:
    found = given(closed(Case.parse(asked), where(te, capability, cublas)))
    assert [said in one for one in found] == ([] if said == RUNS else [True])


@pytest.mark.parametrize("te", TE)
def test_the_table_agrees_with_the_sources_on_every_machine(te: str) -> None:
    disagreements = {}
    for capability, cublas, asked in itertools.product(CAPABILITIES, CUBLAS, ASKED):
        case = Case.parse(asked)
        said = answer(version(te), capability, version(cublas), case)
        found = given(closed(case, where(te, capability, cublas)))
        if [said in one for one in found] != ([] if said == RUNS else [True]):
            disagreements[capability, cublas, asked] = (said, found)
    assert disagreements == {}


@pytest.mark.parametrize("te", TE)
def test_a_refusal_names_what_is_there_and_what_opens_it(te: str) -> None:
    for capability, cublas, asked in itertools.product(CAPABILITIES, CUBLAS, ASKED):
        for row in closed(Case.parse(asked), where(te, capability, cublas)):
            assert row.because, row
            assert row.unlock, row
            assert bool(row.says) != bool(row.falls_back_to), row


def test_what_is_said_to_open_a_refusal_opens_it() -> None:
    case = Case.parse("te:api=op")
    (row,) = closed(case, where("2.18.0", (9, 0), "13.1.0"))
    assert (row.because, row.unlock) == ("cuBLASLt 13.1.0", "cuBLASLt 13.4 or newer at run time")
    assert closed(case, where("2.18.0", (9, 0), "13.4.0")) == []


@pytest.mark.parametrize(("te", "capability", "cublas", "asked", "said"), tuple(WHERE.values()), ids=WHERE)
def test_only_an_exception_that_is_due_is_a_refusal(
    te: str, capability: Version, cublas: str, asked: str, said: str
) -> None:
    due = said not in (RUNS, LEGACY)
    outcome = judged(Case.parse(asked), where(te, capability, cublas), said if due else ON_HOPPER)
    assert outcome is (Outcome.REFUSED if due else Outcome.RAISED)


@pytest.mark.parametrize("message", tuple(OTHER_WORDS.values()), ids=OTHER_WORDS)
def test_other_words_than_those_due_stay_raised_even_where_the_table_says_closed(message: str) -> None:
    assert judged(Case.parse("te:api=op"), where("2.17.1", (9, 0), "13.1.0"), message) is Outcome.RAISED


def test_the_right_words_where_the_table_says_open_stay_raised() -> None:
    assert judged(Case.parse("te:api=op"), where("2.17.1", (9, 0), "13.5.0"), ON_HOPPER) is Outcome.RAISED


RAN = ChannelSeen(fill="exact", phases=[PhaseSeen(microbatch=0, phase="forward", slots=[])])
NOT_RUN = ChannelSeen(fill="exact", inapplicable="too long a sum")
MISALIGNED = "torch:api=grouped_mm:in_features=12"
# 8 tokens in the first microbatch, 6 in the second, and in bf16 16 bytes are 8 of them.
MISALIGNED_LATER = "torch:api=grouped_mm:m_splits=4,4:input_layout=transposed"
# The right words where they are due, but said at another time or in another way than a refusal is.
TOO_LATE: dict[str, tuple[str, dict[str, Any], list[ChannelSeen]]] = {
    "in a later forward": ("te:api=op", {"during": "forward of microbatch 1, exact data"}, []),
    "in the tenth forward": ("te:api=op", {"during": "forward of microbatch 10, exact data"}, []),
    "in backward": ("te:api=op", {"during": "backward of microbatch 0, exact data"}, []),
    "in a later backward": (MISALIGNED, {"during": "backward of microbatch 1, exact data"}, []),
    "in a microbatch that is aligned": (MISALIGNED_LATER, {"during": "forward of microbatch 0, exact data"}, []),
    "on normal data after the exact channel ran": (
        "te:api=op",
        {"during": "forward of microbatch 0, normal data"},
        [RAN],
    ),
    "with a device that no longer answers": ("te:api=op", {"sticky": True}, []),
    "as another exception": ("te:api=op", {"type": "ValueError"}, []),
    "as an exception of a kind of its own": ("te:api=op", {"type": "CandidateRuntimeError"}, []),
    "on the second line": ("te:api=op", {"message": f"CUDA error\n{ON_HOPPER}"}, []),
}
# When a refusal may come.
IN_TIME: dict[str, tuple[str, str, list[ChannelSeen]]] = {
    "in build": ("te:api=op", "build, exact data", []),
    "while the weights are loaded": ("te:api=op", "loading of the weights, exact data", []),
    "in the first forward": ("te:api=op", "forward of microbatch 0, exact data", []),
    "on normal data where exact data could not be run": (
        "te:api=op",
        "forward of microbatch 0, normal data",
        [NOT_RUN],
    ),
    "in the first backward, where the table says so": (MISALIGNED, "backward of microbatch 0, exact data", []),
    "in the first microbatch that is closed": (MISALIGNED_LATER, "forward of microbatch 1, exact data", []),
}


def outcome_of(asked: str, seen: dict[str, Any], channels: list[ChannelSeen]) -> Outcome:
    """What becomes of a refusal of this case, put like this, where it is due."""
    words = "strides should be multiple of 16 bytes" if asked.startswith("torch") else ON_HOPPER
    first = "forward of microbatch 0, exact data"
    said = Raised(**{"type": "RuntimeError", "message": words, "during": first, "traceback": "", **seen})
    observed = Observation(case=asked, ending="raised", channels=channels)
    return raised(Case.parse(asked), observed, said, where("2.17.1", (9, 0), "13.1.0")).outcome


@pytest.mark.parametrize(("asked", "seen", "channels"), tuple(TOO_LATE.values()), ids=TOO_LATE)
def test_the_right_words_are_no_refusal(asked: str, seen: dict[str, Any], channels: list[ChannelSeen]) -> None:
    assert outcome_of(asked, seen, channels) is Outcome.RAISED


@pytest.mark.parametrize(("asked", "during", "channels"), tuple(IN_TIME.values()), ids=IN_TIME)
def test_a_refusal_comes_before_anything_is_computed(asked: str, during: str, channels: list[ChannelSeen]) -> None:
    assert outcome_of(asked, {"during": during}, channels) is Outcome.REFUSED


# A single weight of the module, not on the native path: with this dtype and cuBLAS, all of this is to be changed.
UNLOCKS = {
    "fp32": (":dtype=fp32", "13.5.0", "dtype=bf16 or dtype=fp16 and path=native (use_grouped_tensor=True)"),
    "an old cuBLAS": (
        "",
        "13.1.0",
        "cuBLASLt 13.4 or newer at run time and path=native (use_grouped_tensor=True)",
    ),
    "neither": ("", "13.5.0", "path=native (use_grouped_tensor=True)"),
}


@pytest.mark.parametrize("path", ("", ":path=legacy"))
@pytest.mark.parametrize(("dtype", "cublas", "unlock"), tuple(UNLOCKS.values()), ids=UNLOCKS)
def test_an_unlock_names_all_that_is_to_be_changed(dtype: str, cublas: str, unlock: str, path: str) -> None:
    asked = Case.parse(f"te:api=module:single_grouped_weight=1{path}{dtype}")
    assert [row.unlock for row in closed(asked, where("2.20.2", (9, 0), cublas))] == [unlock]


def test_a_refusal_quotes_the_candidate() -> None:
    seen = Raised(type="RuntimeError", message=ON_HOPPER, during="forward of microbatch 0", traceback="")
    observation = Observation(case="te:api=op", ending="raised")
    finding = raised(Case.parse("te:api=op"), observation, seen, where("2.17.1", (9, 0), "13.1.0"))
    assert finding.why == f"closed by cuBLASLt 13.1.0: RuntimeError in forward of microbatch 0: {ON_HOPPER}"


def test_the_users_own_switch_makes_the_native_path_the_one_asked_for() -> None:
    on = where("2.17.1", (9, 0), "13.1.0", NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM="1")
    off = where("2.17.1", (9, 0), "13.1.0", NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM="0")
    assert [judged(Case.parse("te:api=module"), here, ON_HOPPER) for here in (on, off)] == [
        Outcome.REFUSED,
        Outcome.RAISED,
    ]


@pytest.mark.parametrize("ran", ("legacy", "native"))
def test_a_fallback_is_refused_only_where_it_is_announced(ran: str) -> None:
    case = Case.parse("te:api=module:path=native")
    seen = Observation(case=str(case), ending="finished", effective={"path": ran})
    here = where("2.18.0", (9, 0), "13.1.0")
    assert not_the_case(case, seen, here) is None
    found = fell_back(case, seen, here)
    assert (found and found.outcome) is (Outcome.REFUSED if ran == "legacy" else None)


@pytest.mark.parametrize(("torch", "due"), (("2.9.1", True), ("2.10.0", False), ("2.13.0a0+8145d630e8", False)))
def test_grouped_mm_is_refused_only_where_torch_has_none(torch: str, due: bool) -> None:  # noqa: FBT001
    here = Environment(versions={"torch": torch})
    said = f"torch.nn.functional.grouped_mm is not in torch {torch}"
    outcome = judged(Case.parse("torch:api=grouped_mm"), here, said, "NotImplementedError")
    assert (outcome is Outcome.REFUSED) is due


def test_the_loop_takes_rows_that_grouped_mm_cannot() -> None:
    assert closed(Case.parse("torch:api=loop:in_features=12:out_features=7"), Environment()) == []


def test_the_loop_is_never_refused() -> None:
    assert closed(Case.parse("torch:api=loop"), Environment(versions={"torch": "2.6.0"})) == []


def test_nothing_is_closed_in_an_environment_that_says_nothing() -> None:
    assert [asked for asked in ASKED if closed(Case.parse(asked), Environment())] == []


DEQUANTIZED = "recipe=Float8CurrentScaling:backward_override=dequantized"
# A fault that Transformer Engine itself describes -> the beginning of what is cited.
DESCRIBED = {
    ("te:api=module:single_grouped_weight=1", "wgrad", "2.17.1"): "TransformerEngine issue 3234",
    ("te:api=module:single_grouped_weight=1", "wgrad", "2.20.2"): "",
    (f"te:api=module:save_original_input=1:{DEQUANTIZED}", "wgrad", "2.17.1"): "TransformerEngine PR 3141",
    (f"te:api=module:save_original_input=1:{DEQUANTIZED}", "wgrad", "2.18.0"): "",
    (f"te:api=module:{DEQUANTIZED}", "wgrad", "2.17.1"): "",
    ("te:api=module:frozen_weights=last", "wgrad", "2.20.2"): "requires_grad is read of weight0",
    ("te:api=module:frozen_weights=all:bias=1", "bgrad", "2.20.2"): "the legacy path takes bias gradients",
    ("te:api=op:delay_wgrad_compute=1", "wgrad", "2.20.2"): "backward_dw() assigns .grad",
    ("te:api=op_mlp:fuse_wgrad=1:overwrite_main_grad=some", "wgrad_fc2", "2.20.2"): "overwrite_main_grad is read of",
    ("te:api=op:delay_wgrad_compute=1:fuse_wgrad=1", "wgrad", "2.20.2"): "",
    ("te:api=op:recompute=te:recipe=DelayedScaling", "dgrad", "2.20.2"): "an op that te.checkpoint runs again",
    ("te:api=op:recompute=te:recipe=DelayedScaling", "wgrad", "2.17.1"): "an op that te.checkpoint runs again",
    ("te:api=op:recompute=te:recipe=DelayedScaling", "fprop", "2.20.2"): "",
    ("te:api=module:recompute=te:recipe=DelayedScaling", "dgrad", "2.20.2"): "",
    ("te:api=op:cuda_graph=torch:fuse_wgrad=1", "wgrad", "2.20.2"): "a replay runs no Python",
    ("te:api=op:delay_wgrad_compute=1", "dgrad", "2.20.2"): "",
    ("torch:api=loop:delay_wgrad_compute=1", "wgrad", "2.20.2"): "",
}


@pytest.mark.parametrize(("asked", "beginning"), DESCRIBED.items(), ids=map(str, DESCRIBED))
def test_what_upstream_describes_is_cited_where_it_holds(asked: tuple[str, str, str], beginning: str) -> None:
    text, role, version = asked
    said = described(Case.parse(text), role, Environment(versions={"transformer_engine": version}))
    assert said.startswith(beginning)
    assert bool(said) == bool(beginning)


def test_a_described_fault_is_a_finding_all_the_same() -> None:
    case, environment = (
        Case.parse("te:api=op:delay_wgrad_compute=1"),
        Environment(versions={"transformer_engine": "2.20.2"}),
    )
    finding = Finding(slot="wgrad[0]", outcome=Outcome.INEXACT, why="3 of 9 elements differ")
    told = cited(finding, case, environment)
    assert (told.outcome, told.slot) == (finding.outcome, finding.slot)
    assert told.why.startswith("3 of 9 elements differ; upstream: backward_dw() assigns .grad")


REFUSED_BY = {
    "te:api=module:fuse_wgrad=1:main_grad_dtype=bf16:dtype=fp16": "no-gemm-into-bf16",
    "te:api=op:fuse_wgrad=1:main_grad_dtype=bf16:dtype=fp32": "no-gemm-into-bf16",
    "te:api=module:fuse_wgrad=1:main_grad_dtype=bf16:dtype=fp16:frozen_weights=all": "",
    "te:api=op:frozen_weights=first": "op-freezes-all-or-none",
    "te:api=op:frozen_weights=all:bias=1": "op-freezes-all-or-none",
    "te:api=op:frozen_weights=all": "",
    "te:api=op:frozen_weights=all:bias=1:frozen_bias=1": "",
    "te:api=module:path=native:num_gemms=65": "native-takes-64-groups",
    "te:api=module:path=native:num_gemms=64:bias=1": "",
    "te:api=op:single_grouped_weight=1:num_gemms=128": "",
    "te:api=op:single_grouped_weight=1:num_gemms=128:bias=1": "native-takes-64-groups",
    "te:api=module:path=native:single_grouped_weight=1:num_gemms=65": "",
    "te:api=op:dtype=fp32:num_gemms=65": "",
    "te:api=op:padded_tail=nan": "",
    "te:api=op:dtype=fp32:padded_tail=nan": "legacy-takes-no-tail",
    "te:api=module:path=native:padded_tail=nan": "",
    "te:api=module:path=native:m_splits_as=host": "module-wants-splits-on-the-device",
    "te:api=module:path=native:save_original_input=1": "",
    "te:api=module:bias=1:single_grouped_bias=1": "module-single-weight-needs-native",
    "te:api=module:frozen_weights=first": "",
    "te:api=module:fuse_wgrad=1:main_grad_dtype=bf16": "",
}


@pytest.mark.parametrize(("text", "row"), REFUSED_BY.items(), ids=REFUSED_BY)
def test_what_has_no_gemm_or_is_frozen_in_part_may_be_refused(text: str, row: str) -> None:
    here = Environment(versions={"transformer_engine": "2.20.2", "cublaslt": "13.5.1"}, compute_capability=(9, 0))
    assert [one.name for one in closed(Case.parse(text), here)] == ([row] if row else [])


def test_a_module_that_lists_its_packed_weight_takes_64_groups_too() -> None:
    here = Environment(versions={"transformer_engine": "2.17.1", "cublaslt": "13.5.1"}, compute_capability=(9, 0))
    (only,) = closed(Case.parse("te:api=module:path=native:single_grouped_weight=1:num_gemms=65"), here)
    assert (only.name, only.unlock) == ("native-takes-64-groups", "num_gemms <= 64")


CAPTURED = {
    "te:api=op:dtype=fp32:cuda_graph=torch": "op-reads-splits-on-the-host",
    "te:api=op:dtype=fp32:cuda_graph=te": "op-reads-splits-on-the-host",
    "te:api=op:cuda_graph=te": "",
    "te:api=module:dtype=fp32:cuda_graph=torch": "",
    "te:api=op:dtype=fp32": "",
}


@pytest.mark.parametrize(("text", "row"), CAPTURED.items(), ids=CAPTURED)
def test_an_op_that_reads_its_splits_on_the_host_may_refuse_a_capture(text: str, row: str) -> None:
    here = Environment(
        versions={"transformer_engine": "2.20.2", "cublaslt": "13.5.1"}, compute_capability=(9, 0), device="cuda:0"
    )
    assert [one.name for one in closed(Case.parse(text), here)] == ([row] if row else [])


# The runs on real hardware that are kept.
RUNS_KEPT = sorted(file.parent for file in (Path(__file__).parent.parent / "reports").rglob("report.json"))


@pytest.mark.parametrize("folder", RUNS_KEPT, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_the_table_says_of_each_recorded_case_what_a_device_did(folder: Path) -> None:
    report, where, wrong = read(folder), environments(folder), []
    for one in report.verdicts:
        case, here = Case.of(one.axes), where.get(one.case, report.environment)
        seen = Observation(case=one.case, ending="finished", channels=[RAN], effective=one.effective)
        ran = one.outcome.executed and not one.outcome.no_end
        notes = ran_all_the_same(case, seen, here) if ran else []
        unsaid = {found.diagnosis for found in one.findings if found.outcome is Outcome.REFUSED}
        unsaid -= {row.name for row in closed(case, here)}
        # `legacy, then cutlass`: CUTLASS is the legacy path with another GEMM.
        path = str(one.effective.get("path", "unknown")).partition(",")[0].replace("cutlass", "legacy")
        if notes or unsaid or (path != "unknown" and path != path_taken(case, here)):
            wrong.append((one.case, notes, unsaid, path))
    assert wrong == []


def test_a_run_where_the_table_says_refused_is_told_and_changes_nothing() -> None:
    case, shut, open_ = Case.parse("te:api=op"), where("2.17.1", (9, 0), "13.1.0"), where("2.17.1", (9, 0), "13.5.0")
    seen = Observation(case="te:api=op", ending="finished", channels=[RAN], effective={"path": "native"})
    told, silent = conclude(case, seen, shut), conclude(case, seen, open_)
    note = "the capability table says that this is refused (op-needs-cublas: cuBLASLt 13.1.0): it ran"
    assert (told.notes, silent.notes) == ([note], [])
    assert (told.outcome, told.findings) == (silent.outcome, silent.findings)


@pytest.mark.parametrize(("ran", "told"), (("native", True), ("legacy", False)))
def test_a_native_path_that_the_table_says_is_not_taken_is_told(ran: str, told: bool) -> None:  # noqa: FBT001
    case = Case.parse("te:api=module:path=native")
    seen = Observation(case=str(case), ending="finished", channels=[RAN], effective={"path": ran})
    notes = conclude(case, seen, where("2.18.0", (9, 0), "13.1.0")).notes
    said = "the capability table says that this runs legacy instead (module-falls-back: cuBLASLt 13.1.0): it ran"
    assert notes == ([said] if told else [])


# Where nobody has read or seen Transformer Engine -> what is said of it.
UNSEEN = {
    "as read and seen": ("2.20.2", (9, 0), []),
    "a later version": ("2.20.3", (9, 0), ["Transformer Engine 2.20.3; the sources of 2.14 to 2.20.2 were read"]),
    "an earlier version": ("2.13", (9, 0), ["Transformer Engine 2.13; the sources of 2.14 to 2.20.2 were read"]),
    "Blackwell": ("2.20.2", (10, 0), ["compute capability 10.0, read from sources; 9.0 was seen"]),
}


@pytest.mark.parametrize(("te", "capability", "why"), tuple(UNSEEN.values()), ids=UNSEEN)
def test_what_nobody_has_seen_is_marked(te: str, capability: Version, why: list[str]) -> None:
    told = openings.table(plugins.BUILT_IN["te"], where(te, capability, "13.5.0"), 1000)
    assert [line.partition(": ")[2] for line in told if line.startswith("? unconfirmed")] == why
    entries = [cell for line in told for cell in re.findall(r"\b(?:runs|refused|falls back)\b\??(?=  | \d|$)", line)]
    assert {cell.endswith("?") for cell in entries} == {bool(why)}


def test_a_table_that_is_too_wide_is_one_or_more_for_each_api() -> None:
    told = openings.table(plugins.BUILT_IN["te"], where("2.17.1", (9, 0), "13.1.0"), 78)
    heads = [line.split()[2:] for line in told if line.startswith("recipe  ")]
    assert heads == [["module"] * 3, ["module"], ["op"] * 3, ["op"]]
    assert max(len(line) for line in told if "  runs  " in line) <= 78


CUTLASS = "te:api=module:path=cutlass"
LEAVES_CUTLASS = {
    "nothing": (f"{CUTLASS}:in_features=256:out_features=128", (9, 0), []),
    "a bias": (f"{CUTLASS}:in_features=256:out_features=128:bias=1", (9, 0), ["a bias that the GEMM adds"]),
    "a bias that is returned": (f"{CUTLASS}:in_features=256:out_features=128:bias=1:return_bias=1", (9, 0), []),
    "fp32": (f"{CUTLASS}:in_features=256:out_features=128:dtype=fp32", (9, 0), ["fp32 operands"]),
    "sizes": (CUTLASS, (9, 0), ["in_features=64 and out_features=96, no multiple of 128"]),
    "a size of dgrad": (f"{CUTLASS}:in_features=128", (9, 0), ["out_features=96, no multiple of 128"]),
    "a size of a dgrad that there is none of": (f"{CUTLASS}:in_features=128:frozen_input=1", (9, 0), []),
    "Blackwell": (f"{CUTLASS}:in_features=256:out_features=128", (10, 0), ["compute capability 10.0"]),
    "Ada": (f"{CUTLASS}:in_features=256:out_features=128", (8, 9), ["compute capability 8.9"]),
    "a recipe": (
        f"{CUTLASS}:in_features=256:out_features=128:m_splits=128,256:recipe=DelayedScaling",
        (9, 0),
        ["operands that a recipe quantises"],
    ),
}


@pytest.mark.parametrize(("case", "capability", "found"), tuple(LEAVES_CUTLASS.values()), ids=LEAVES_CUTLASS)
def test_what_keeps_a_gemm_from_cutlass(case: str, capability: Version, found: list[str]) -> None:
    due = closed(Case.parse(case), where("2.20.2", capability, "13.5.0"))
    assert [gate.found for row in due for gate in row.gates] == found
    assert {row.falls_back_to for row in due} <= {"legacy"}


def test_cutlass_has_no_packed_weight_since_2_19() -> None:
    case = Case.parse(f"{CUTLASS}:in_features=128:out_features=128:single_grouped_weight=1")
    assert [row.name for row in closed(case, where("2.20.2", (9, 0), "13.5.0"))] == [
        "module-single-weight-needs-native"
    ]


# Version, compute capability, cuBLASLt and case -> the path that the op takes by itself.
OF_AN_OP = {
    "bf16": ("2.20.2", (9, 0), "13.5.0", "te:api=op", "native"),
    "fp32": ("2.20.2", (9, 0), "13.5.0", "te:api=op:dtype=fp32", "legacy"),
    "an older cuBLAS": ("2.20.2", (9, 0), "13.1.0", "te:api=op", "legacy"),
    "an older cuBLAS, of which 2.18 does not ask": ("2.18.0", (9, 0), "13.5.0", "te:api=op", "native"),
    "2.16 on Hopper": ("2.16.1", (9, 0), "13.5.0", "te:api=op", "legacy"),
    "2.16 on Blackwell": ("2.16.1", (10, 0), "13.5.0", "te:api=op", "native"),
    "Ada": ("2.20.2", (8, 9), "13.5.0", "te:api=op", "legacy"),
    "DelayedScaling": (
        "2.20.2", (9, 0), "13.5.0",
        "te:api=op:recipe=DelayedScaling:m_splits=128,256:in_features=256:out_features=128", "legacy",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("te", "capability", "cublas", "case", "taken"), tuple(OF_AN_OP.values()), ids=OF_AN_OP)
def test_an_op_is_refused_the_path_that_it_does_not_take(
    te: str, capability: Version, cublas: str, case: str, taken: str
) -> None:
    here, other = where(te, capability, cublas), {"native": "legacy", "legacy": "native"}[taken]
    assert closed(Case.parse(f"{case}:path={taken}"), here) == closed(Case.parse(case), here) == []
    asked = Case.parse(f"{case}:path={other}")
    (row,) = closed(asked, here)
    assert (row.name, row.falls_back_to) == ("op-takes-its-own-path", taken)
    assert row.unlock
    seen = Observation(case=str(asked), ending="finished", effective={"path": taken, "recipe": asked.recipe})
    refusal = fell_back(asked, seen, here)
    assert refusal is not None
    assert (refusal.outcome, refusal.unlock) == (Outcome.REFUSED, row.unlock)


OPENED = {
    "te:api=op:path=native:dtype=fp32": "te:api=op:path=native",
    "te:api=op:path=legacy": "te:api=op:path=legacy:dtype=fp32",
}


@pytest.mark.parametrize(("shut", "opened"), OPENED.items(), ids=OPENED)
def test_what_opens_the_other_path_of_an_op_opens_it(shut: str, opened: str) -> None:
    here = where("2.20.2", (9, 0), "13.5.0")
    assert [row.name for row in closed(Case.parse(shut), here)] == ["op-takes-its-own-path"]
    assert closed(Case.parse(opened), here) == []


def test_an_op_that_takes_another_path_than_the_table_says_is_not_the_case() -> None:
    asked = Case.parse("te:api=op:path=native")
    seen = Observation(case=str(asked), ending="finished", effective={"path": "legacy"})
    found = not_the_case(asked, seen, where("2.20.2", (9, 0), "13.5.0"))
    assert found is not None
    assert found.why == "asked path=native, and path=legacy ran."


def test_an_override_that_a_candidate_ignores_is_another_case_and_no_refusal() -> None:
    case = Case.parse(
        f"te:api=op:backward_override=dequantized:{QUANTISED.format('Float8CurrentScaling', '16,48', 256)}"
    )
    ran = ChannelSeen(fill="exact", phases=[PhaseSeen(microbatch=0, phase="forward", slots=[])])
    effective: dict[str, str | int] = {"path": "native", "recipe": "Float8CurrentScaling", "backward_override": "none"}
    seen = Observation(case=str(case), ending="finished", channels=[ran], effective=effective)
    here = where("2.20.2", (9, 0), "13.5.0")
    assert closed(case, here) == []
    assert fell_back(case, seen, here) is None
    found = not_the_case(case, seen, here)
    assert found
    assert (found.outcome, found.diagnosis) == (Outcome.NOT_THE_CASE, "backward_override")
