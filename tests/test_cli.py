"""Does each command that runs no case say what it must? As a user types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import child, typed
from typer.main import get_command

from gradcheck_cli import __version__, cli, installed, plugins, selection
from gradcheck_cli.records.case import Case

SMOKE = ("--matrix", "smoke", "--provider", "torch")
STAND_IN = Path(__file__).parent / "fake_te"


def listed(*arguments: str) -> list[str]:
    done = typed("list", *arguments)
    assert done.code == 0, done.err
    return done.out.splitlines()


def test_the_version_is_printed() -> None:
    assert child("--version") == (0, f"gradcheck {__version__}\n", "")


def test_the_commands_are_those_that_work_and_no_others() -> None:
    commands: dict[str, object] = get_command(cli.app).commands  # type: ignore[attr-defined]
    assert commands.keys() == {*COMMANDS, "known"}


def test_help_begins_with_the_question_that_is_answered() -> None:
    done = typed("--help")
    assert (done.code, "Did every gradient of a grouped linear layer arrive" in done.out) == (0, True)


def test_without_a_command_there_is_help_and_no_green() -> None:
    done = child()
    assert done.code == 2
    assert "Usage: gradcheck" in done.out + done.err


COMMANDS = (
    "run",
    "list",
    "show",
    "providers",
    "doctor",
    "report",
    "judge",
    "selftest",
    "explain",
    "diff",
    "minimise",
    "bisect",
    "script",
    "bundle",
    "verify",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = typed(command, "-h")
    assert (done.code, f"gradcheck {command}" in done.out) == (0, True)


def test_no_command_is_summed_up_in_half_a_sentence_at_80_columns() -> None:
    summaries = child("--help", COLUMNS="80").out.partition("Commands:\n")[2].splitlines()
    assert len(summaries) == len({*COMMANDS, "known"})
    assert [line for line in summaries if not line.endswith(".") or line.endswith("..")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_is_named_by_what_it_is_and_not_by_its_type(command: str) -> None:
    out = child(command, "-h", COLUMNS="80").out
    assert re.findall(r"<(?:str|int|float|path)(?: range)?>|\{[A-Z]+\}|\bTEXT\b|\bINTEGER\b|\bFLOAT\b", out) == []


FOLDED = {
    "show": ("show", "te:api=module:path=native:fuse_wgrad_accumulation=1:bias=1"),
    "providers": ("providers",),
    "doctor": ("doctor", "--device", "cpu"),
}


@pytest.mark.parametrize("arguments", FOLDED.values(), ids=FOLDED)
def test_on_a_terminal_a_line_breaks_between_words_and_in_a_pipe_not_at_all(arguments: tuple[str, ...]) -> None:
    narrow, whole = (child(*arguments, COLUMNS=width).out for width in ("60", "10000"))
    assert [line for line in narrow.splitlines() if len(line) > 60] == []
    assert narrow.split() == whole.split()
    assert max(map(len, whole.splitlines())) > 60
    assert typed(*arguments).out == whole


def test_every_line_of_list_is_a_case_that_reads_back() -> None:
    lines = listed("--matrix", "full", "--provider", "te")
    assert lines == [str(Case.parse(line)) for line in lines]


def test_what_list_prints_is_what_case_takes() -> None:
    lines = listed(*SMOKE)
    assert listed(*(part for line in lines for part in ("--case", line))) == lines


def test_a_case_is_listed_under_its_one_id_however_it_was_spelled() -> None:
    assert listed("--case", "torch:dtype=bf16:api=loop:fuse_wgrad=true:num_gemms=4") == [
        "torch:api=loop:fuse_wgrad_accumulation=1"
    ]


def test_an_expression_keeps_the_order_and_drops_the_rest() -> None:
    assert listed(*SMOKE, "-k", "api=loop and bias") == [
        line for line in listed(*SMOKE) if "api=loop" in line and "bias=1" in line
    ]


@pytest.mark.parametrize("count", (1, 3, 7))
def test_shards_are_disjoint_and_cover_the_whole(count: int) -> None:
    whole = listed("--matrix", "core", "--provider", "torch")
    parts = [listed("--matrix", "core", "--provider", "torch", "--shard", f"{i + 1}/{count}") for i in range(count)]
    assert sorted(line for part in parts for line in part) == sorted(whole)


def test_several_providers_are_listed_together() -> None:
    assert listed("--matrix", "smoke", "--provider", "te", "--provider", "torch") == [
        *listed("--matrix", "smoke", "--provider", "te"),
        *listed(*SMOKE),
    ]


SEEDED = {"a matrix": SMOKE, "a named case": ("--case", "torch:api=loop")}


@pytest.mark.parametrize("arguments", SEEDED.values(), ids=SEEDED)
def test_a_seed_is_part_of_every_id(arguments: tuple[str, ...]) -> None:
    assert listed(*arguments, "--seed", "7") == [f"{line}:seed=7" for line in listed(*arguments)]


def test_a_named_case_keeps_the_seed_of_its_own() -> None:
    cases = ("--case", "torch:api=loop:seed=5", "--case", "torch:api=loop")
    assert listed(*cases, "--seed", "7") == ["torch:api=loop:seed=5", "torch:api=loop:seed=7"]


def test_a_named_case_brings_its_own_provider_where_that_is_left_open() -> None:
    assert listed("--case", "te:api=op", "--provider", "auto") == ["te:api=op"]


def test_excluded_cases_are_listed_with_the_constraint_and_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "paths.toml"
    file.write_text('[[block]]\napi = "loop"\npath = ["auto", "native"]\n', encoding="utf-8")
    kept, left_out = listed("--matrix", str(file), "--provider", "torch", "--excluded")
    assert kept == "torch:api=loop"
    assert left_out.startswith("torch:api=loop:path=native  EXCLUDED path-is-a-module-switch: only te:api=module")


def test_without_asking_excluded_cases_are_not_listed(tmp_path: Path) -> None:
    file = tmp_path / "paths.toml"
    file.write_text('[[block]]\napi = "loop"\npath = ["auto", "native"]\n', encoding="utf-8")
    assert listed("--matrix", str(file), "--provider", "torch") == ["torch:api=loop"]


def test_variables_set_the_options_of_their_names() -> None:
    done = child(
        "list", GRADCHECK_MATRIX="smoke", GRADCHECK_PROVIDER="torch", GRADCHECK_K="bias", GRADCHECK_SHARD="1/2"
    )
    assert done.out.splitlines() == listed(*SMOKE, "-k", "bias", "--shard", "1/2")


def test_an_option_that_is_typed_wins_over_its_variable() -> None:
    assert child("list", *SMOKE, GRADCHECK_MATRIX="full").out.splitlines() == listed(*SMOKE)


# A case -> what `show` must say of it, and what it must not.
CONTRACTS = {
    "unfused, one weight per expert": (
        "torch:api=loop",
        ("wgrad: .grad of each of the 4 weights, (96, 64) bfloat16", "an attached main_grad keeps its prefill"),
        ("grad_added_to_main_grad", "bgrad"),
    ),
    "unfused, packed": (
        "torch:api=loop:single_grouped_weight=1:dtype=fp32",
        ("wgrad: .grad of the packed weight, (4, 96, 64) float32", "exactly 0"),
        ("each of the 4 weights", "bgrad"),
    ),
    "fused, one weight per expert": (
        "te:api=module:fuse_wgrad_accumulation=1",
        (
            "main_grad of each of the 4 weights, (96, 64) float32, is its prefill plus",
            "grad_added_to_main_grad is True",
        ),
        ("wgrad: .grad", "bgrad"),
    ),
    "fused, packed": (
        "te:api=op:single_grouped_weight=1:fuse_wgrad_accumulation=1",
        ("main_grad of the packed weight, (4, 96, 64) float32", ".grad is None or a dummy"),
        ("wgrad: .grad", "bgrad"),
    ),
    "with a bias": (
        "torch:api=loop:bias=1:microbatches=1",
        ("y_i = x_i w_i^T + b_i", "bgrad: .grad of each bias, (96,) bfloat16, is the sum of grad_output_i's rows"),
        (" over ",),
    ),
    "several microbatches": (
        "torch:api=loop:m_splits=5,0,3",
        ("m_splits = [5, 0, 3]", "microbatch 1: m_splits = [3, 4, 0]", "the sum over 2 microbatches of"),
        ("bgrad",),
    ),
}


@pytest.mark.parametrize(("case", "said", "not_said"), CONTRACTS.values(), ids=CONTRACTS)
def test_show_says_what_must_arrive_where(case: str, said: tuple[str, ...], not_said: tuple[str, ...]) -> None:
    out = typed("show", case).out
    assert [words for words in said if words not in out] == []
    assert [words for words in not_said if words in out] == []


def test_show_begins_with_the_constraint_that_excludes_a_case() -> None:
    case, excluded, *_ = typed("show", "torch:api=loop:path=native").out.splitlines()
    assert case == "torch:api=loop:path=native"
    assert excluded.startswith("EXCLUDED by path-is-a-module-switch: only te:api=module can be told")


@pytest.mark.parametrize("name", ("te", "torch", "local", "junit", "markdown", "csv", "smoke", "issue-3234"))
def test_providers_names_everything_that_can_be_chosen(name: str) -> None:
    assert name in typed("providers").out


def test_doctor_on_this_machine_finds_torch_open_and_says_how_to_open_te() -> None:
    out = child("doctor", "--device", "cpu").out
    assert "closed: transformer-engine is not installed: install it into this environment" in out
    assert "every path is open" in out


@pytest.fixture
def te(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with the stand-in for Transformer Engine installed, whose driver offers one device."""
    metadata = tmp_path / "transformer_engine-2.17.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.17.1\n", "utf-8")
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installed, "cuda_devices", lambda: 1)
    return monkeypatch


def test_auto_takes_te_where_it_is_installed_and_a_driver_answers(te: pytest.MonkeyPatch) -> None:
    assert {line.split(":")[0] for line in listed("--matrix", "smoke")} == {"te"}


def test_auto_takes_torch_where_no_driver_answers(te: pytest.MonkeyPatch) -> None:
    te.setattr(installed, "cuda_devices", lambda: 0)
    assert {line.split(":")[0] for line in listed("--matrix", "smoke")} == {"torch"}


def test_doctor_says_which_paths_are_closed_by_what_and_what_opens_them(te: pytest.MonkeyPatch) -> None:
    te.setattr(plugins, "candidates", lambda: {"te": plugins.BUILT_IN["te"]})
    out = typed("doctor", "--device", "cpu").out
    assert "transformer_engine 2.17.1" in out
    assert "NVTE_GROUPED_LINEAR_SINGLE_PARAM=1" in out
    assert "no CUDA device is in use: this is the table of compute capability 9.0, assumed, without a cuBLASLt" in out
    row = next(line for line in out.splitlines() if line.split()[:2] == ["none", "fp32"])
    assert re.split("  +", row.strip())[2:] == [
        *("runs", "falls back 3", "falls back 3", "falls back 3"),
        *("runs", "falls back 3", "runs", "runs"),
    ]
    assert "  3  fp32 operands; opens with dtype=bf16 or dtype=fp16\n" in out


def test_doctor_without_a_driver_says_what_would_run_with_a_device_that_it_names(te: pytest.MonkeyPatch) -> None:
    te.setattr(installed, "cuda_devices", lambda: 0)
    out = typed("doctor").out
    assert "closed: it needs a CUDA device" in out
    assert "  transformer_engine 2.17.1, not loaded\n  no CUDA device is in use: this is the table of compute" in out
    assert "falls back" in out


def test_doctor_quotes_an_installation_that_is_broken_and_goes_on(te: pytest.MonkeyPatch) -> None:
    te.setenv("FAKE_TE_BROKEN", "libcublas.so.13: cannot open shared object file: No such file or directory")
    done = typed("doctor", "--device", "cpu")
    assert done.code == 0
    assert "closed: the candidate te_module cannot be imported: OSError: libcublas.so.13: cannot open" in done.out
    assert "every path is open" in done.out


@pytest.mark.parametrize("error", (ZeroDivisionError("in the middle"), RuntimeError("no memory")), ids=str)
def test_what_nobody_foresaw_ends_with_3_a_traceback_and_one_line_and_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: selection.Asked) -> None:
        raise error

    monkeypatch.setattr(selection, "each", fail)
    done = typed("list", *SMOKE)
    *trace, last = done.err.splitlines()
    assert (done.code, done.out) == (3, "")
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", f"{type(error).__name__}: {error}")
    assert last == "gradcheck: gradcheck itself failed; please report it with the lines above"


def test_the_path_of_an_op_is_asked_for_by_the_id_of_a_case() -> None:
    assert typed("list", "--case", "te:api=op:path=native") == (0, "te:api=op:path=native\n", "")
    assert "EXCLUDED" not in typed("show", "te:api=op:path=legacy").out
