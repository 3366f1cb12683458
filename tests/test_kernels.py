"""Do the kernels that ran show what was asked? Names as an H200 gave them, and operators of torch on the CPU."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
from in_process import CPU, observed

from gradcheck_cli import pipeline
from gradcheck_cli.compute import kernels
from gradcheck_cli.compute.engine import Engine
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.effective import not_the_case
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.kernels import path_shown, shown
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.verdict import Outcome

SETUP = "(anonymous namespace)::setup_grouped_gemm_kernel(void**, void**, void**, void**)"
NATIVE = "nvjet_sm90_tst_32x64_64x16_4x2_h_bx_ptrGroup_NTN"
NATIVE_FP8 = "nvjet_sm90_qqtst_64x8_128x16_2x4_h_bx_AperBatchScalar_BperBatchScalar_ptrGroup_TNT"
LEGACY = "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT"
LEGACY_FP32_OUT = "nvjet_sm90_tss_32x64_64x16_4x2_h_badd_NTN"
LEGACY_FP8 = "nvjet_sm90_qqtst_64x8_128x16_2x4_h_bz_TNT"
BLOCKS_FP8 = "nvjet_sm90_qqtst_128x128_128x6_1x1_h_bz_coopA_algo2_Ablk128_Bvec128_TNN"
CUTLASS = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalINS1_17GroupProblemShapeIN4cute5tupleIJiiiEEEEE"
TF32 = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x3_tn_align4>(cutlass_80_tensorop_s1688gemm::Params)"
)
CAST = "void transformer_engine::unary_kernel<8, true, float, __nv_bfloat16, __nv_fp8_e4m3>(...)"
SPLITS = "transformer_engine::splits_to_offsets::splits_to_offsets_kernel(long const*, long*, unsigned long, long)"


def phases(forward: list[str], backward: list[str]) -> list[str]:
    return [*(f"forward: {name}" for name in forward), *(f"backward: {name}" for name in backward)]


SHOWN = {
    "native": (phases([SPLITS, SETUP, NATIVE], [SETUP, NATIVE]), "native"),
    "native by its set-up alone": (phases([SETUP], []), "native"),
    "native in FP8": (phases([CAST, NATIVE_FP8], [NATIVE_FP8]), "native"),
    "legacy": (phases([LEGACY], [LEGACY, LEGACY_FP32_OUT]), "legacy"),
    "legacy in FP8": (phases([CAST, LEGACY_FP8], [LEGACY_FP8]), "legacy"),
    "legacy, scaled by blocks": (phases([BLOCKS_FP8], []), "legacy"),
    "legacy in fp32, whose cuBLAS kernels have CUTLASS in their names": (phases([TF32], [TF32]), "legacy"),
    "CUTLASS, with a wgrad that it leaves to cuBLAS": (phases([CUTLASS], [CUTLASS, LEGACY]), "cutlass"),
    "CUTLASS in fprop alone": (phases([CUTLASS], [LEGACY]), "cutlass, then legacy"),
    "CUTLASS in dgrad alone": (phases([LEGACY], [CUTLASS]), "legacy, then cutlass"),
    "both layers of a chain": (phases([NATIVE, LEGACY], []), "native and legacy"),
    "nothing that multiplies": (phases([SPLITS, CAST], []), ""),
    "operators of a CPU": (phases(["aten::mm"], ["aten::mm"]), ""),
    "nothing": ([], ""),
}


@pytest.mark.parametrize(("names", "path"), tuple(SHOWN.values()), ids=SHOWN)
def test_the_names_of_kernels_show_the_path_that_ran(names: list[str], path: str) -> None:
    assert path_shown(names) == path


@pytest.mark.parametrize("name", (CAST, NATIVE_FP8, LEGACY_FP8, BLOCKS_FP8))
def test_fp8_is_seen_in_casts_and_in_gemms(name: str) -> None:
    assert shown("fp8", phases([], [name])) == f"backward: {name}"


@pytest.mark.parametrize("name", (SETUP, NATIVE, LEGACY, LEGACY_FP32_OUT, CUTLASS, TF32, SPLITS))
def test_what_works_on_no_fp8_shows_none(name: str) -> None:
    assert shown("fp8", phases([name], [])) == ""


H200 = Environment(versions={"transformer_engine": "2.20.2", "cublaslt": "13.5.1"}, compute_capability=(9, 0))
FP8 = "te:api=module:path=legacy:recipe=Float8CurrentScaling"
CONTRADICTED = {
    "says native, runs legacy": (
        "te:api=module:path=native", "native", phases([LEGACY], [LEGACY]),
        f"the candidate says path=native, and path=legacy ran: forward: {LEGACY}",
    ),
    "says legacy, runs native": (
        "te:api=module:path=legacy", "legacy", phases([NATIVE], []),
        f"the candidate says path=legacy, and path=native ran: forward: {NATIVE}",
    ),
    "says native, and falls back in its backward": (
        "te:api=module:path=native", "native", phases([SETUP, NATIVE], [LEGACY]),
        f"the candidate says path=native, and path=legacy ran: backward: {LEGACY}",
    ),
    "an op that may choose, and says another": (
        "te:api=op", "native", phases([LEGACY], []),
        f"the candidate says path=native, and path=legacy ran: forward: {LEGACY}",
    ),
    "a fallback that is announced and did not happen": (
        "te:api=module:path=native:dtype=fp32", "legacy", phases([NATIVE], []),
        f"the candidate says path=legacy, and path=native ran: forward: {NATIVE}",
    ),
    "the user's own variable": (
        "te:api=module:path=legacy", "legacy", phases([CUTLASS], [CUTLASS, LEGACY]),
        f"asked path=legacy, and path=cutlass ran: forward: {CUTLASS}.",
    ),
    "CUTLASS that is asked for and falls back": (
        "te:api=module:path=cutlass:in_features=128:out_features=128", "legacy", phases([LEGACY], [LEGACY]),
        f"asked path=cutlass, and path=legacy ran: forward: {LEGACY}.",
    ),
    "CUTLASS that falls back in its dgrad": (
        "te:api=module:path=cutlass:in_features=128:out_features=128", "legacy", phases([CUTLASS], [LEGACY]),
        f"asked path=cutlass, and path=cutlass, then legacy ran: backward: {LEGACY}.",
    ),
    "CUTLASS that nobody saw": (
        "te:api=module:path=cutlass:in_features=128:out_features=128", "legacy", phases(["aten::linear"], []),
        "asked path=cutlass, and path=unknown ran: only kernels show CUTLASS, and torch's profiler gave none "
        "(the worker's log may say why).",
    ),
    "a recipe that quantises nothing": (
        FP8, "legacy", phases([LEGACY], [LEGACY_FP8]),
        f"asked recipe=Float8CurrentScaling, and no kernel of the forward works on FP8: forward: {LEGACY} ran",
    ),
    "a recipe whose backward quantises nothing": (
        FP8, "legacy", phases([CAST, LEGACY_FP8], [LEGACY]),
        f"asked recipe=Float8CurrentScaling, and no kernel of the backward works on FP8: backward: {LEGACY} ran",
    ),
    "a recipe of which one GEMM knows nothing": (
        FP8, "legacy", phases([CAST, LEGACY_FP8], [CAST, LEGACY_FP8, LEGACY]),
        f"asked recipe=Float8CurrentScaling, and a GEMM of the backward has no FP8 operands: backward: {LEGACY}",
    ),
    "operands that are cast and not multiplied": (
        FP8, "legacy", phases([CAST, LEGACY], [CAST, LEGACY_FP8]),
        f"asked recipe=Float8CurrentScaling, and a GEMM of the forward has no FP8 operands: forward: {LEGACY}",
    ),
    "an override that is said and not followed": (
        f"{FP8}:backward_override=high_precision", "legacy", phases([CAST, LEGACY_FP8], [CAST, LEGACY_FP8]),
        "asked backward_override=high_precision, and a GEMM of the backward has FP8 operands: "
        f"backward: {LEGACY_FP8}",
    ),
    "no recipe, and FP8": (
        "te:api=module:path=legacy", "legacy", phases([CAST, LEGACY], []),
        f"asked recipe=none, and a kernel works on FP8: forward: {CAST}",
    ),
}  # fmt: skip


def seen(case: str, path: str, names: list[str]) -> Observation:
    one = Case.parse(case)
    said: dict[str, str | int] = {"path": path, "recipe": one.recipe, "backward_override": one.backward_override}
    return Observation(case=case, ending="finished", effective=said, kernels=names)


@pytest.mark.parametrize(("case", "path", "names", "why"), tuple(CONTRADICTED.values()), ids=CONTRADICTED)
def test_kernels_that_contradict_are_not_the_case(case: str, path: str, names: list[str], why: str) -> None:
    found = not_the_case(Case.parse(case), seen(case, path, names), H200)
    assert found is not None
    assert (found.outcome, found.why) == (Outcome.NOT_THE_CASE, why)


FITTING = {
    "native": ("te:api=module:path=native", "native", phases([SETUP, NATIVE], [NATIVE])),
    "legacy": ("te:api=module:path=legacy", "legacy", phases([LEGACY], [LEGACY])),
    "FP8": (FP8, "legacy", phases([CAST, LEGACY_FP8], [LEGACY_FP8])),
    "an override": (
        f"{FP8}:backward_override=high_precision",
        "legacy",
        phases([CAST, LEGACY_FP8], [LEGACY, LEGACY_FP32_OUT]),
    ),
    "FP8 by the name of its GEMM alone": (FP8, "legacy", phases([LEGACY_FP8], [])),
    "a chain of two paths": ("te:api=op_mlp", "native and legacy", phases([NATIVE, LEGACY], [NATIVE, LEGACY])),
    "CUTLASS where the path is left open": ("te:api=module", "legacy", phases([CUTLASS], [CUTLASS])),
    "CUTLASS": (
        "te:api=module:path=cutlass:in_features=128:out_features=128",
        "legacy",
        phases([CUTLASS], [CUTLASS, LEGACY]),
    ),
    "CUTLASS without a dgrad": (
        "te:api=module:path=cutlass:frozen_input=1:in_features=128",
        "legacy",
        phases([CUTLASS], [LEGACY]),
    ),
    "a CUTLASS that fp32 is announced to leave, by kernels of no known name": (
        "te:api=module:path=cutlass:dtype=fp32",
        "legacy",
        phases(["sm80_gemm"], []),
    ),
    "nobody looked": ("te:api=module:path=native", "native", []),
    "nobody looked at a recipe": (FP8, "legacy", []),
    "a profiler without the device": ("te:api=module:path=native", "native", phases(["aten::linear"], [])),
}


@pytest.mark.parametrize(("case", "path", "names"), tuple(FITTING.values()), ids=FITTING)
def test_kernels_that_fit_or_tell_nothing_are_no_finding(case: str, path: str, names: list[str]) -> None:
    assert not_the_case(Case.parse(case), seen(case, path, names), H200) is None


def test_a_verdict_names_the_path_and_the_kernels_that_were_seen() -> None:
    names = phases([CUTLASS], [CUTLASS, LEGACY])
    told = conclude(Case.parse("te:api=module"), seen("te:api=module", "legacy", names), H200)
    assert (told.effective["path"], told.kernels) == ("cutlass", names)


def test_an_observation_of_before_there_were_kernels_still_loads() -> None:
    text = msgspec.json.encode(seen("te:api=module:path=native", "native", []))
    older = {name: value for name, value in json.loads(text).items() if name != "kernels"}
    assert msgspec.convert(older, Observation).kernels == []


# torch, on the CPU


def looked_at(case: str, on: Engine, target: str = "") -> list[str]:
    job = pipeline.job(Case.parse(case))
    return on.run(msgspec.structs.replace(job, target=target or job.target)).kernels


@pytest.fixture
def loops() -> Engine:
    return Engine("cpu", ["gradcheck_cli.compute.providers.torch_loop:build", "faulty_layers:raising_in_forward"])


LOOP = "torch:api=loop"


@pytest.mark.parametrize("api", ("loop", "grouped_mm"))
def test_the_operators_of_torch_show_whether_a_grouped_gemm_ran(api: str) -> None:
    names = observed(f"torch:api={api}:m_splits=3,5").kernels
    assert bool(shown("grouped_mm", names, "forward")) is (api == "grouped_mm")
    assert bool(shown("grouped_mm", names, "backward")) is (api == "grouped_mm")
    assert shown("gemm", names, "backward")


def test_kernels_are_looked_at_in_each_case_of_what_says_nothing_else(loops: Engine) -> None:
    first = looked_at(LOOP, loops)
    assert "forward: aten::addmm" in looked_at(f"{LOOP}:bias=1", loops)
    assert looked_at(f"{LOOP}:seed=3:m_splits=5,0,9", loops) == first != []
    assert looked_at(f"{LOOP}:m_splits=all_empty", loops) == []


def test_one_shape_says_nothing_of_what_is_chosen_for_another(loops: Engine) -> None:
    asked, alike = "torch:api=grouped_mm", "torch:api=grouped_mm:m_splits=5,0,9"
    on = Engine("cpu", [target := "faulty_layers:loops_where_an_expert_is_empty"])
    found = {}
    for case in (asked, alike, asked):
        job = msgspec.structs.replace(pipeline.job(Case.parse(case)), target=target)
        found[case] = conclude(job.case, on.run(job), CPU)
    assert (found[asked].outcome, found[asked].findings) == (Outcome.PASSED, [])
    assert found[alike].outcome is Outcome.NOT_THE_CASE
    assert found[alike].findings[0].why == "asked api=grouped_mm, and no grouped GEMM ran: forward: aten::linear did"


def test_a_path_that_is_new_to_a_configuration_is_looked_at_on_the_next_data() -> None:
    case, watched = Case.parse("te:api=op"), kernels.Kernels(torch.device("cpu"))
    for path in ("native", "legacy"):
        watched.of(case)
        with watched.after(case, path)("forward"):
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        assert watched.seen(case, path, finished=True) == ["forward: aten::mm"]
        assert watched.of(case) is watched.after(case, path) is kernels.unwatched


def test_a_path_that_was_not_looked_at_has_no_kernels() -> None:
    case, watched = Case.parse("te:api=module"), kernels.Kernels(torch.device("cpu"))
    with watched.of(case)("forward"):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert watched.seen(case, "legacy", finished=True) == ["forward: aten::mm"]
    assert watched.of(case) is kernels.unwatched
    assert [watched.seen(case, path, finished=True) for path in ("legacy", "native")] == [["forward: aten::mm"], []]


def test_a_case_without_tokens_does_not_stand_for_its_configuration(loops: Engine) -> None:
    assert looked_at(f"{LOOP}:m_splits=all_empty", loops) == []
    assert looked_at(LOOP, loops) != []


def test_a_candidate_that_raises_leaves_no_profiler_behind(loops: Engine) -> None:
    # It raises in the second microbatch: what ran of the first is kept, and looked at again.
    assert "backward: aten::mm" in looked_at(LOOP, loops, "faulty_layers:raising_in_forward")
    assert looked_at(LOOP, loops) != []


class Closed:
    """A profiler that cannot start."""

    def __init__(self, **_: object) -> None:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nand more")


class Stuck:
    """A profiler that cannot end."""

    kineto_results = None

    def __init__(self, **_: object) -> None:
        self.ended = 0

    def __enter__(self) -> Stuck:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("profiler", (Closed, Stuck))
def test_a_profiler_that_fails_costs_no_case_and_is_told_once(
    loops: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profiler: type
) -> None:
    monkeypatch.setattr(kernels, "profile", profiler)
    job = pipeline.job(Case.parse(LOOP))
    observation = loops.run(job)
    assert loops.run(pipeline.job(Case.parse(f"{LOOP}:bias=1"))).kernels == []
    assert conclude(job.case, observation, CPU).outcome is Outcome.PASSED
    told = capsys.readouterr().err
    assert told.count("torch's profiler gave none") == told.count("\n") == 1


def test_a_grouped_mm_that_loops_in_secret_is_not_the_case(loops: Engine) -> None:
    job = pipeline.job(Case.parse("torch:api=grouped_mm"))
    seen = loops.run(msgspec.structs.replace(job, target=pipeline.job(Case.parse(LOOP)).target))
    found = not_the_case(job.case, seen, CPU)
    assert found is not None
    assert found.why == "asked api=grouped_mm, and no grouped GEMM ran: forward: aten::linear did"
