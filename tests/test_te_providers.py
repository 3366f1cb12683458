"""Is `te` judged rightly in every version of Transformer Engine? A stand-in for it, in real workers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from commands import typed

from gradcheck_cli import installed, pipeline, plugins
from gradcheck_cli.errors import HarnessError
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.verdict import Finding, Outcome, Verdict
from gradcheck_cli.workers.executor import LocalExecutor

STAND_IN = Path(__file__).parent / "fake_te"
HOPPER = (9, 0)


class Machine(NamedTuple):
    """What the stand-in pretends to be, and the cuBLASLt that the report names where that is another."""

    te: str
    cublaslt: str = "13.5.0"
    named_cublaslt: str = ""
    variables: dict[str, str] = {}

    @property
    def environment(self) -> Environment:
        versions = {"transformer_engine": self.te, "cublaslt": self.named_cublaslt or self.cublaslt}
        return Environment(versions=versions, device="cuda:0", compute_capability=HOPPER)

    def pretend(self, patch: pytest.MonkeyPatch) -> None:
        major, minor, fix = (int(part) for part in self.cublaslt.split("."))
        patch.syspath_prepend(str(STAND_IN))
        patch.setenv("FAKE_TE_VERSION", self.te)
        patch.setenv("FAKE_TE_CUBLASLT", str(10000 * major + 100 * minor + fix))
        for name, value in self.variables.items():
            patch.setenv(name, value)


def judged(folder: Path, machine: Machine, cases: list[Case]) -> dict[str, Verdict]:
    """Every case through a real worker and the judge; past `installed.require`, which wants a CUDA device for te."""
    with pytest.MonkeyPatch.context() as patch, LocalExecutor(device="cpu", log_dir=folder) as executor:
        machine.pretend(patch)
        runs = executor.run([pipeline.job(case) for case in cases], lambda _: None, lambda _: None)
        return {str(job.case): conclude(job.case, seen, machine.environment) for job, seen in runs}


def finding(folder: Path, machine: Machine, case: str) -> Finding:
    """What is said of one case."""
    (verdict,) = judged(folder, machine, [Case.parse(case)]).values()
    assert verdict.worst is not None
    return verdict.worst


def cases_of(name: str) -> list[Case]:
    points = matrix.enumerate_cases(matrix.load(name), [plugins.candidate("te")], seed=0)
    return [point for point in points if isinstance(point, Case)]


def outcomes(verdicts: dict[str, Verdict]) -> dict[str, str]:
    return {case: verdict.outcome.value for case, verdict in verdicts.items()}


SEED_SHAPE = "microbatches=1:grad_output=expanded"
MODULE_SHAPE = f"num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32:{SEED_SHAPE}"
OP_SHAPE = f"num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32:{SEED_SHAPE}"

# The table of the issue, row by row.
SEED_TABLE = {
    f"te:api=module:{MODULE_SHAPE}": "PASSED",
    f"te:api=module:fuse_wgrad_accumulation=1:{MODULE_SHAPE}": "PASSED",
    f"te:api=module:single_grouped_weight=1:{MODULE_SHAPE}": "MISSING",
    f"te:api=module:single_grouped_weight=1:fuse_wgrad_accumulation=1:{MODULE_SHAPE}": "MISSING",
    f"te:api=module:dtype=fp32:{MODULE_SHAPE}": "PASSED",
    f"te:api=module:fuse_wgrad_accumulation=1:dtype=fp32:{MODULE_SHAPE}": "PASSED",
    f"te:api=module:single_grouped_weight=1:dtype=fp32:{MODULE_SHAPE}": "MISSING",
    f"te:api=module:single_grouped_weight=1:fuse_wgrad_accumulation=1:dtype=fp32:{MODULE_SHAPE}": "MISSING",
    f"te:api=op_mlp:single_grouped_weight=1:{OP_SHAPE}": "PASSED",
    f"te:api=op_mlp:single_grouped_weight=1:fuse_wgrad_accumulation=1:{OP_SHAPE}": "PASSED",
    f"te:api=op_mlp:single_grouped_weight=1:dtype=fp32:{OP_SHAPE}": "PASSED",
    f"te:api=op_mlp:single_grouped_weight=1:fuse_wgrad_accumulation=1:dtype=fp32:{OP_SHAPE}": "PASSED",
}


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """The cells of the issue on the version that it was filed against."""
    return judged(tmp_path_factory.mktemp("seed"), Machine("2.17.1"), cases_of("issue-3234"))


def test_the_cells_of_the_issue_give_the_table_of_the_issue(seed: dict[str, Verdict]) -> None:
    assert outcomes(seed) == SEED_TABLE


@pytest.mark.parametrize("case", [case for case, outcome in SEED_TABLE.items() if outcome == "MISSING"])
def test_where_the_weight_has_no_gradient_everything_else_is_still_right(seed: dict[str, Verdict], case: str) -> None:
    roles = seed[case].roles
    assert roles == {"fprop": Outcome.PASSED, "dgrad": Outcome.PASSED, "wgrad": Outcome.MISSING}


MISSING_WORDS = {
    f"te:api=module:single_grouped_weight=1:{MODULE_SHAPE}": ".grad is None, and main_grad holds its prefill",
    f"te:api=module:single_grouped_weight=1:fuse_wgrad_accumulation=1:{MODULE_SHAPE}": (
        "main_grad still holds its prefill, bit for bit, and .grad is None"
    ),
}


@pytest.mark.parametrize(("case", "words"), MISSING_WORDS.items(), ids=("unfused", "fused"))
def test_a_missing_gradient_is_told_with_every_place_that_was_looked_at(
    seed: dict[str, Verdict], case: str, words: str
) -> None:
    (only,) = seed[case].findings
    assert words in only.why


# What 2.20.2 makes of single grouped weights, and of the same paths without one.
SINCE_219 = {
    "te:api=module": ("PASSED", ""),
    "te:api=module:path=native": ("PASSED", ""),
    "te:api=module:path=native:dtype=fp32": ("REFUSED", "dtype=bf16 or dtype=fp16"),
    "te:api=module:single_grouped_weight=1": ("REFUSED", "path=native (use_grouped_tensor=True)"),
    "te:api=module:path=legacy:single_grouped_weight=1": ("REFUSED", "path=native (use_grouped_tensor=True)"),
    "te:api=module:path=native:single_grouped_weight=1": ("PASSED", ""),
    "te:api=module:path=native:single_grouped_weight=1:dtype=fp16": ("PASSED", ""),
    "te:api=module:path=native:single_grouped_weight=1:fuse_wgrad_accumulation=1": ("PASSED", ""),
    "te:api=module:path=native:single_grouped_weight=1:dtype=fp32": ("REFUSED", "dtype=bf16 or dtype=fp16"),
    "te:api=op:single_grouped_weight=1": ("PASSED", ""),
    "te:api=op:single_grouped_weight=1:fuse_wgrad_accumulation=1:dtype=fp16": ("PASSED", ""),
    "te:api=op:single_grouped_weight=1:dtype=fp32": ("REFUSED", "dtype=bf16 or dtype=fp16"),
    "te:api=op:dtype=fp32": ("PASSED", ""),
    "te:api=op_mlp:single_grouped_weight=1:m_splits=empty_middle": ("PASSED", ""),
    "te:api=op_mlp:fuse_wgrad_accumulation=1:dtype=fp16:m_splits=uneven": ("PASSED", ""),
    "te:api=op_mlp:single_grouped_weight=1:dtype=fp32": ("REFUSED", "dtype=bf16 or dtype=fp16"),
    "te:api=op_mlp:dtype=fp32": ("PASSED", ""),
}


@pytest.fixture(scope="module")
def since_219(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    return judged(tmp_path_factory.mktemp("219"), Machine("2.20.2"), [Case.parse(case) for case in SINCE_219])


@pytest.mark.parametrize("case", SINCE_219)
def test_since_2_19_a_single_weight_is_right_on_the_native_path_and_refused_elsewhere(
    since_219: dict[str, Verdict], case: str
) -> None:
    worst = since_219[case].worst
    assert (since_219[case].outcome.value, worst.unlock if worst else "") == SINCE_219[case]


def test_a_refusal_quotes_the_candidate(since_219: dict[str, Verdict]) -> None:
    worst = since_219["te:api=module:single_grouped_weight=1"].worst
    assert worst is not None
    assert "RuntimeError in forward of microbatch 0" in worst.why
    assert "require use_grouped_tensor=True" in worst.why


@pytest.mark.parametrize("version", ("2.14.1", "2.16.1", "2.18.0", "2.19.0"))
def test_separate_weights_are_right_in_every_version_that_is_declared(tmp_path: Path, version: str) -> None:
    both = "m_splits=empty_middle", "fuse_wgrad_accumulation=1:bias=1:m_splits=uneven"
    cases = [Case.parse(f"te:api={api}:{rest}") for api in ("module", "op") for rest in both]
    verdicts = judged(tmp_path, Machine(version), cases)
    assert set(outcomes(verdicts).values()) == {"PASSED"}


# (the machine, a case) -> what must be said of it, and in which words.
TOLD: dict[str, tuple[Machine, str, str, str]] = {
    "a packed weight that a variable turned off is another case": (
        Machine("2.17.1", variables={"NVTE_GROUPED_LINEAR_SINGLE_PARAM": "0"}),
        "te:api=op:single_grouped_weight=1",
        "NOT_THE_CASE",
        "NVTE_GROUPED_LINEAR_SINGLE_PARAM is not set: falling back to per-expert parameters",
    ),
    "a fallback that the table announces is a refusal": (
        Machine("2.20.2", cublaslt="13.1.0"),
        "te:api=module:path=native",
        "REFUSED",
        "asked path=native, and path=legacy ran, without a word from the candidate",
    ),
    "a fallback that the table does not announce is another case": (
        Machine("2.20.2", cublaslt="13.1.0", named_cublaslt="13.5.0"),
        "te:api=module:path=native",
        "NOT_THE_CASE",
        "asked path=native, and path=legacy ran",
    ),
    "a module without a native path falls back as announced": (
        Machine("2.16.1"),
        "te:api=module:path=native",
        "REFUSED",
        "whose module has no native path",
    ),
    "a version that does not tell its path ran nobody knows which": (
        Machine("2.17.1", variables={"FAKE_TE_TELLS_PATH": "0"}),
        "te:api=module:path=legacy",
        "NOT_THE_CASE",
        "asked path=legacy, and path=unknown ran",
    ),
    "nor is it known to have run the native one": (
        Machine("2.20.2", variables={"FAKE_TE_TELLS_PATH": "0"}),
        "te:api=module:path=native",
        "NOT_THE_CASE",
        "asked path=native, and path=unknown ran",
    ),
    "an announced fallback is no cover for a wgrad that is missing": (
        Machine("2.16.1"),
        "te:api=module:path=native:single_grouped_weight=1",
        "MISSING",
        ".grad is None, and main_grad holds its prefill",
    ),
    "a cuBLAS that is too old is a refusal of a chain as well": (
        Machine("2.17.1", cublaslt="13.1.0"),
        "te:api=op_mlp",
        "REFUSED",
        "requires cuBLAS 13.4+",
    ),
    "a cuBLAS that is too old is a refusal where the library says so": (
        Machine("2.17.1", cublaslt="13.1.0"),
        "te:api=op",
        "REFUSED",
        "requires cuBLAS 13.4+",
    ),
    "the same words are no excuse where nothing is closed": (
        Machine("2.17.1", cublaslt="13.1.0", named_cublaslt="13.5.0"),
        "te:api=op",
        "RAISED",
        "expected gradients; the candidate raised RuntimeError in forward of microbatch 0",
    ),
    "other words are no refusal, even where one is due": (
        Machine("2.17.1", cublaslt="0.0.0", named_cublaslt="13.1.0"),
        "te:api=op",
        "RAISED",
        "cuBLAS Error: the library was not initialized",
    ),
}


@pytest.mark.parametrize(("machine", "case", "outcome", "words"), TOLD.values(), ids=TOLD)
def test_a_case_that_did_not_run_as_asked(
    tmp_path: Path, machine: Machine, case: str, outcome: str, words: str
) -> None:
    told = finding(tmp_path, machine, case)
    assert told.outcome.value == outcome
    assert words in told.why


UNTOLD = {"2.16.1": ("te:api=module:path=legacy", "legacy"), "2.17.1": ("te:api=module", "unknown")}


@pytest.mark.parametrize("version", UNTOLD)
def test_a_path_that_is_not_told_matters_only_where_there_is_a_choice_and_one_was_asked(
    tmp_path: Path, version: str
) -> None:
    case, path = UNTOLD[version]
    machine = Machine(version, variables={"FAKE_TE_TELLS_PATH": "0"})
    (verdict,) = judged(tmp_path, machine, [Case.parse(case)]).values()
    assert (verdict.outcome, verdict.effective["path"]) == (Outcome.PASSED, path)


def test_a_wgrad_that_is_missing_after_an_announced_fallback_is_told_beside_the_refusal(tmp_path: Path) -> None:
    case = Case.parse("te:api=module:path=native:single_grouped_weight=1")
    (verdict,) = judged(tmp_path, Machine("2.16.1"), [case]).values()
    assert [one.outcome for one in verdict.findings] == [Outcome.MISSING, Outcome.REFUSED]
    assert verdict.findings[1].unlock == "Transformer Engine 2.17 or newer"


def test_a_run_in_which_everything_was_refused_is_not_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine("2.17.1").pretend(monkeypatch)
    monkeypatch.setattr(installed, "require", lambda *_: None)  # it wants a CUDA device
    case = "te:api=module:path=native:dtype=fp32"
    done = typed("run", "--case", case, "--device", "cpu", "--output", str(tmp_path / "run"))
    assert done.code == 5
    assert "executed 0 of 1 asked (0%) · 1 REFUSED" in done.out
    assert "opens with: dtype=bf16 or dtype=fp16" in done.out


BROKEN = {
    "a library that is not there": "libcublas.so.13: cannot open shared object file: No such file or directory",
    "a library of another build": "transformer_engine_torch.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
}


@pytest.mark.parametrize("words", BROKEN.values(), ids=BROKEN)
def test_a_broken_installation_is_told_in_its_own_words(tmp_path: Path, words: str) -> None:
    machine = Machine("2.17.1", variables={"FAKE_TE_BROKEN": words})
    with pytest.raises(HarnessError, match="the candidate te_ops cannot be imported") as ended:
        judged(tmp_path, machine, [Case.parse("te:api=op")])
    assert words in str(ended.value)
    assert "gradcheck doctor" in str(ended.value)


def test_each_use_of_tied_weights_may_be_added_to_main_grad_by_itself(tmp_path: Path) -> None:
    cases = [
        Case.parse(f"te:api={api}:fuse_wgrad=1:main_grad_dtype={dtype}:tied_weights=1:microbatches=5")
        for api in ("module", "op")
        for dtype in ("fp32", "bf16")
    ]
    assert set(outcomes(judged(tmp_path, Machine("2.17.1"), cases)).values()) == {"PASSED"}


CUTLASS = "te:api=module:path=cutlass:in_features=128:out_features=128"
SWITCH = "NVTE_USE_CUTLASS_GROUPED_GEMM"


@pytest.fixture(scope="module")
def asked_cutlass(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    folder = tmp_path_factory.mktemp("cutlass")
    tails = ("", ":bias=1", ":dtype=fp32", ":fuse_wgrad_accumulation=1", ":m_splits=empty_middle")
    others = ("te:api=module:path=cutlass:in_features=128", "te:api=module:path=cutlass:out_features=128")
    frozen = "te:api=module:path=cutlass:frozen_input=1:in_features=128"
    named = [*(CUTLASS + tail for tail in tails), *others, frozen, "te:api=module:path=legacy", "te:api=module"]
    return judged(folder, Machine("2.20.2"), [Case.parse(case) for case in named])


def test_cutlass_is_asked_by_a_variable_and_proved_by_kernels(asked_cutlass: dict[str, Verdict]) -> None:
    for tail in ("", ":fuse_wgrad_accumulation=1", ":m_splits=empty_middle"):
        found = asked_cutlass[str(Case.parse(CUTLASS + tail))]
        assert (found.outcome, found.effective["path"]) == (Outcome.PASSED, "cutlass"), tail
        assert any("GroupProblemShape" in kernel for kernel in found.kernels)


def test_without_a_dgrad_cutlass_needs_fprop_alone(asked_cutlass: dict[str, Verdict]) -> None:
    found = asked_cutlass["te:api=module:path=cutlass:frozen_input=1:in_features=128"]
    assert (found.outcome, found.effective["path"]) == (Outcome.PASSED, "cutlass")


LEAVES_CUTLASS = {
    f"{CUTLASS}:bias=1": ("bias=0 or return_bias=1", "legacy, then cutlass"),
    f"{CUTLASS}:dtype=fp32": ("dtype=bf16 or dtype=fp16", "legacy"),
    "te:api=module:path=cutlass:in_features=128": ("multiples of 128", "cutlass, then legacy"),
    "te:api=module:path=cutlass:out_features=128": ("multiples of 128", "legacy, then cutlass"),
}


@pytest.mark.parametrize("case", LEAVES_CUTLASS)
def test_what_the_table_says_of_cutlass_is_refused_with_what_opens_it(
    asked_cutlass: dict[str, Verdict], case: str
) -> None:
    found, (unlock, ran) = asked_cutlass[str(Case.parse(case))], LEAVES_CUTLASS[case]
    assert (found.outcome, found.effective["path"]) == (Outcome.REFUSED, ran)
    assert found.worst is not None
    assert (found.worst.diagnosis, found.worst.unlock) == ("module-leaves-cutlass", unlock)


def test_no_other_case_of_the_run_has_the_variable_of_cutlass(asked_cutlass: dict[str, Verdict]) -> None:
    for case in ("te:api=module:path=legacy", "te:api=module"):
        assert (asked_cutlass[case].outcome, asked_cutlass[case].effective["path"]) == (Outcome.PASSED, "legacy")


def test_the_users_own_variable_reaches_no_case_that_asks_for_a_path(tmp_path: Path) -> None:
    machine = Machine("2.20.2", variables={SWITCH: "1"})
    shape = "in_features=128:out_features=128"
    asked = ("legacy", "native", "cutlass", "auto")
    cases = [Case.parse(f"te:api=module:path={path}:{shape}") for path in asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "1")
        found = judged(tmp_path, machine, cases)
    assert [verdict.effective["path"] for verdict in found.values()] == ["legacy", "native", "cutlass", "cutlass"]
    assert {verdict.outcome for verdict in found.values()} == {Outcome.PASSED}


def test_a_path_whose_kernels_are_anothers_is_not_the_case(tmp_path: Path) -> None:
    machine = Machine("2.20.2", variables={"FAKE_TE_LAUNCHES": "legacy"})
    found = finding(tmp_path, machine, "te:api=module:path=native")
    assert found.outcome is Outcome.NOT_THE_CASE
    assert found.why.startswith("the candidate says path=native, and path=legacy ran: backward: cublasLt::nvjet")


@pytest.mark.parametrize(
    ("fault", "override", "words"),
    (
        ("backward in bf16", "none", "asked recipe=Float8CurrentScaling, and no kernel of the backward works on FP8"),
        (
            "override forgotten",
            "dequantized",
            "asked backward_override=dequantized, and a GEMM of the backward has FP8",
        ),
    ),
)
def test_a_backward_of_other_operands_than_it_says_is_not_the_case(
    tmp_path: Path, fault: str, override: str, words: str
) -> None:
    case = Case.parse(f"te:api=module:recipe=Float8CurrentScaling:backward_override={override}:m_splits=32,64")
    (right,) = judged(tmp_path, Machine("2.20.2"), [case]).values()
    assert (right.outcome, right.findings) == (Outcome.PASSED, [])
    told = finding(tmp_path, Machine("2.20.2", variables={"FAKE_TE_FAULT": fault}), str(case))
    assert told.outcome is Outcome.NOT_THE_CASE
    assert words in told.why


def test_cutlass_that_falls_back_although_nothing_keeps_it_from_running_is_not_the_case(tmp_path: Path) -> None:
    found = finding(tmp_path, Machine("2.20.2", variables={"FAKE_TE_LAUNCHES": "legacy"}), CUTLASS)
    assert (found.outcome, found.why) == (
        Outcome.NOT_THE_CASE,
        "asked path=cutlass, and path=legacy ran: backward: cublasLt::nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT.",
    )


OP_PATHS = {
    "te:api=op:path=native": (Outcome.PASSED, "native", ""),
    "te:api=op:path=legacy": (Outcome.REFUSED, "native", "dtype=fp32 or recipe=DelayedScaling or an older cuBLASLt"),
    "te:api=op:path=legacy:dtype=fp32": (Outcome.PASSED, "legacy", ""),
    "te:api=op:path=native:dtype=fp32": (Outcome.REFUSED, "legacy", "dtype=bf16 or dtype=fp16"),
}


def test_an_op_runs_a_path_that_is_named_only_where_it_takes_it_by_itself(tmp_path: Path) -> None:
    found = judged(tmp_path, Machine("2.20.2"), [Case.parse(case) for case in OP_PATHS])
    told = {
        str(Case.parse(case)): (one.outcome, one.effective["path"], one.worst.unlock if one.worst else "")
        for case, one in found.items()
    }
    assert told == {str(Case.parse(case)): expected for case, expected in OP_PATHS.items()}
