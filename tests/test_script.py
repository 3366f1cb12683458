"""Does a script show its failure in a process of its own, and is none shown that does not?"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch
from commands import typed, variables
from forked import Again

from gradcheck_cli import plugins, reproducing
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure, worst_failure
from gradcheck_cli.records.kernels import CUTLASS_SWITCH
from gradcheck_cli.records.scripted import Ran, Scripted
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters import reproduction
from gradcheck_cli.reproduce.execute import execute, shows
from gradcheck_cli.reproduce.makings import making
from gradcheck_cli.reproduce.script import body
from gradcheck_cli.reproduce.scripting import TIMES, Headers, contrasts, difference, scripted, variants
from gradcheck_cli.reproduce.te_lines import SWITCH
from gradcheck_cli.reproduce.wanted import FAULT, KINDS, MOST_LINES, Unscriptable, Wanted, kinds

TE = {version: Environment(versions={"transformer_engine": version}) for version in ("2.17.1", "2.20.2")}
LOST = Failure("wgrad", Outcome.MISSING, "none")


def written(case: Case, failure: Failure = LOST, version: str = "2.17.1", device: str = "cuda") -> list[list[str]]:
    """The lines for each kind of data."""
    made = making(case, plugins.target(case.provider, case.api), plugins.variables(case), TE[version])
    return [body(Wanted(case, failure, data, device), made) for data in kinds(case, failure)]


@pytest.mark.parametrize("version", TE)
@pytest.mark.parametrize("role", ("fprop", "dgrad", "wgrad", "bgrad"))
def test_every_case_of_the_exhaustive_matrix_has_a_script_that_is_python_and_short(role: str, version: str) -> None:
    candidates = [plugins.candidate(name) for name in ("te", "torch")]
    points = [one for one in matrix.enumerate_cases(matrix.load("exhaustive"), candidates, 0) if isinstance(one, Case)]
    cases = [case for case in points if role != "bgrad" or case.bias]
    assert len(cases) > 500
    for case in cases[:: 7 if role == "wgrad" else 23]:
        texts = written(case, Failure(role, Outcome.MISSING, "none"), version)
        for lines in texts:
            ast.parse("\n".join(lines))
        # Of the data that round, some need more lines than there may be: then other data are what is left.
        assert max(sorted(len(lines) + 3 for lines in texts)[:-1]) <= MOST_LINES, case


NO_CUTLASS = f'os.environ["{CUTLASS_SWITCH}"] = "0"'


@pytest.mark.parametrize(
    ("version", "path", "lines"),
    (
        ("2.17.1", "native", [f'os.environ["{SWITCH}"] = "1"', NO_CUTLASS]),
        ("2.17.1", "legacy", [f'os.environ["{SWITCH}"] = "0"', NO_CUTLASS]),
        ("2.17.1", "cutlass", [f'os.environ["{SWITCH}"] = "0"', f'os.environ["{CUTLASS_SWITCH}"] = "1"']),
        ("2.20.2", "cutlass", [f'os.environ["{CUTLASS_SWITCH}"] = "1"']),
        ("2.20.2", "native", [NO_CUTLASS]),
        ("2.20.2", "legacy", [NO_CUTLASS]),
        ("2.20.2", "auto", []),
    ),
)
def test_variables_are_set_before_torch_is_imported(version: str, path: str, lines: list[str]) -> None:
    case = Case.parse(f"te:api=module:path={path}:single_grouped_weight=1" if path != "auto" else "te:api=module")
    text = written(case, version=version)[0]
    set_ = [line for line in text if line.startswith("os.environ")]
    assert set_ == [*lines, 'os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"'] or set(set_) == {
        *lines,
        'os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = "1"',
    }
    assert max(text.index(line) for line in set_) < text.index("import torch")
    assert ("use_grouped_tensor=True" in "\n".join(text)) == (version == "2.20.2" and path == "native")


ROUNDS = {
    "one rounding": "",
    "one for each microbatch": ":microbatches=2",
    "added to main_grad": ":fuse_wgrad_accumulation=1",
}


@pytest.mark.parametrize("tail", ROUNDS.values(), ids=ROUNDS)
def test_a_right_layer_passes_with_every_rounding_that_the_oracle_allows(tail: str) -> None:
    # torch.grouped_mm takes no bias: it is added to what was stored, where the loop rounds once.
    for api in ("grouped_mm", "loop"):
        case = Case.parse(f"torch:api={api}:bias=1:m_splits=9,7{tail}")
        made = making(case, "", {}, Environment())._replace(hook=True)
        for role in ("fprop", "dgrad", "wgrad", "bgrad"):
            for data in KINDS:
                text = "\n".join(body(Wanted(case, Failure(role, Outcome.INEXACT, ""), data, "cpu"), made))
                with pytest.raises(SystemExit) as ended:
                    exec(text, {})  # noqa: S102
                assert not ended.value.code, (api, role, data)


def test_what_no_few_lines_can_look_at_is_said() -> None:
    for failure in (
        Failure("case", Outcome.UNEXPECTED, "written before main_grad"),
        Failure("weight", Outcome.UNEXPECTED, "weight changed"),
        Failure("case", Outcome.NOT_THE_CASE, "path"),
    ):
        with pytest.raises(Unscriptable):
            written(Case.parse("te:api=module"), failure)


# Each with what it needs to show: a fault of every kind, seen by every kind of data.
FAULTS = {
    "wgrad_doubled": "",
    "wgrad_one_percent": ":m_splits=2",
    "wgrad_token_dropped": ":m_splits=3",
    "fprop_tail_missing": "",
    "dgrad_other_weight": ":m_splits=2,3",
    "dgrad_rows_rolled": ":m_splits=3",
    "wgrad_block_transposed": "",
    "dgrad_nan": "",
    "wgrad_missing": "",
    "bgrad_missing": ":bias=1",
    "wgrad_untouched": ":fuse_wgrad_accumulation=1",
    "wgrad_in_grad": ":fuse_wgrad_accumulation=1",
    "wgrad_in_main_grad": "",
    "wgrad_flag_not_set": ":fuse_wgrad_accumulation=1",
    "wgrad_flag_set": "",
    "wgrad_dummy_shape": ":fuse_wgrad_accumulation=1",
    "wgrad_main_grad_replaced": ":fuse_wgrad_accumulation=1",
    "wgrad_last_only": ":microbatches=2",
    "wgrad_accumulated_in_bf16": ":fuse_wgrad_accumulation=1",
    "wgrad_result_in_fp16": "",
    "fprop_bias_missing": ":bias=1",
    "raises": "",
    "abort": "",
}


# Looked at beside a variant that passes, which takes three more processes.
BESIDE = ("wgrad_untouched", "fprop_bias_missing")


def case_of(name: str) -> Case:
    """A small case of a fault."""
    tail = FAULTS[name] if "m_splits" in FAULTS[name] else f":m_splits=2{FAULTS[name]}"
    tail = tail if "microbatches" in tail else f"{tail}:microbatches=1"
    return Case.parse(f"faults:api={name}:in_features=3:out_features=4{tail}")


@pytest.fixture(scope="module")
def shown() -> dict[str, Scripted]:
    """The script of every fault, from a real worker, which all share, and fresh processes.

    Each has one run in an interpreter of its own; torch is not imported anew for the second and the third.
    """
    cases = {name: case_of(name) for name in FAULTS}
    with reproducing.bench(cases["wgrad_doubled"], "cpu", 30.0) as on, ThreadPoolExecutor(2) as pool:
        passing = {cases[name]: on.passing(cases[name]) for name in BESIDE}
        for case in cases.values():
            on.judged(case)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reproducing, "execute", Again().execute)
            patch.setattr(on, "passing", lambda case: passing.get(case, []))
            done = pool.map(lambda case: reproducing.script_of(on, case), cases.values())
            return dict(zip(FAULTS, done, strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_the_script_of_a_fault_fails_three_times_of_three(shown: dict[str, Scripted], name: str) -> None:
    found = shown[name]
    assert found.why_not == ""
    assert (found.shows, found.fails, found.of) == (True, TIMES, TIMES)
    assert len(found.script.splitlines()) <= MOST_LINES
    assert found.in_words in found.script.splitlines()[0]


def test_a_script_runs_by_itself_as_its_header_says(shown: dict[str, Scripted], tmp_path: Path) -> None:
    file = tmp_path / "reproduce.py"
    file.write_text(shown["wgrad_untouched"].script, "utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"{FAULT} wgrad is missing: experts [0]"
    variant = shown["wgrad_untouched"]
    assert (variant.difference, variant.passes) == ("fuse_wgrad_accumulation=0", TIMES)
    head = "No fault with fuse_wgrad_accumulation=0: passes 3 of 3, where the script beside it shows wgrad MISSING"
    assert variant.variant_script.splitlines()[0] == f'"""{head} (untouched).'
    file.write_text(variant.variant_script, "utf-8")
    passed = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False
    )
    assert (passed.returncode, passed.stdout.strip()) == (0, variant.variant_output)


def test_what_is_missing_needs_no_reference_to_be_seen(shown: dict[str, Scripted]) -> None:
    for name in ("wgrad_missing", "wgrad_untouched", "bgrad_missing"):
        assert "is missing" in shown[name].script, name
        assert "float64" not in shown[name].script, name
    assert "weight 0: no .grad, main_grad still 3.0" in shown["wgrad_untouched"].output
    case = "te:api=module:single_grouped_weight=1:num_gemms=2:tokens_per_expert=4:in_features=16:out_features=32"
    lines = written(Case.parse(f"{case}:microbatches=1"))[0]
    assert len(lines) <= 22
    assert "y = layer(x, [4, 4])" in lines


def test_an_expert_without_tokens_misses_nothing() -> None:
    case = Case.parse("torch:api=loop:fuse_wgrad_accumulation=1:m_splits=2,0,2:microbatches=1")
    text = "\n".join(written(case, Failure("wgrad", Outcome.MISSING, "untouched"), device="cpu")[0])
    assert execute(text, 30.0).output.splitlines()[-1] == "ok"


def test_a_script_says_what_was_expected_and_what_was_found(shown: dict[str, Scripted]) -> None:
    told = re.search(r"where they differ most: expected (\S+), found (\S+)", shown["wgrad_doubled"].output)
    assert told
    assert float(told[2]) == 2 * float(told[1]) != 0
    assert "where they differ most: expected" in shown["fprop_tail_missing"].output


def test_a_script_whose_right_values_are_all_zero_does_not_pass() -> None:
    lines = written(Case.parse("torch:api=loop:m_splits=2"), Failure("wgrad", Outcome.INEXACT, "doubled"), device="cpu")
    text = "\n".join(lines[0])
    assert execute(text, 30.0).fault == ""
    assert execute(text.replace("torch.randint(-2, 3,", "torch.randint(0, 1,"), 30.0).fault == "AssertionError"


@pytest.mark.parametrize("case", ("torch:api=loop:m_splits=2", "faults:api=wgrad_zeroed:m_splits=2"))
def test_nothing_that_a_script_prints_is_chance(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    text = "\n".join(written(Case.parse(case), Failure("wgrad", Outcome.INEXACT, "zeros"), device="cpu")[0])
    said = set()
    for byte in ("90", "165"):  # what fresh memory holds
        monkeypatch.setenv("MALLOC_PERTURB_", byte)
        said.add(execute(text, 30.0).output)
    assert len(said) == 1
    assert re.search(r"input.grad: .* largest [1-9]", said.pop())


@pytest.mark.parametrize("name", ("wgrad_doubled", "fprop_tail_missing"))
def test_the_tensors_of_a_failure_are_those_that_the_script_compared(shown: dict[str, Scripted], name: str) -> None:
    saved = safetensors.torch.load(reproducing.tensors_of(shown[name], 30.0))
    x, g, expected = saved["x"].double(), saved["grad_output"].double(), saved["expected"]
    rows = case_of(name).splits(0)
    if name == "wgrad_doubled":  # of the busiest expert
        found = torch.stack([saved[f"found.{i}"].double() for i in range(len(rows))])
        right = torch.stack([gi.T @ xi for gi, xi in zip(g.split(rows), x.split(rows), strict=True)])
        assert torch.equal(found[0], 2 * right[0])
    else:
        found, right = saved["found"].double(), x @ saved["weight"].double()[0].T
    assert torch.equal(expected, right)
    assert not torch.equal(found, expected)


def test_a_script_that_compares_no_tensors_or_no_longer_fails_has_none(shown: dict[str, Scripted]) -> None:
    assert reproducing.tensors_of(shown["raises"], 30.0) == b""
    mended = msgspec.structs.replace(
        shown["wgrad_doubled"], script=shown["wgrad_doubled"].script.replace("wgrad_doubled", "wgrad_zeroed_not_here")
    )
    assert reproducing.tensors_of(mended, 30.0) == b""


def test_the_command_writes_the_script(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    case = "faults:api=wgrad_missing:m_splits=2:in_features=3:out_features=4:microbatches=1"
    done = typed("script", case, "--device", "cpu", "--output", str(file))
    assert done.code == 0
    assert f"wrote {file}: fails 3 of 3" in done.out
    assert done.err.splitlines()[0] == f"gradcheck: starting a worker, and running {case}"
    assert "gradcheck: running the script (presence), run 2 of 3" in done.err.splitlines()
    assert ast.get_docstring(ast.parse(file.read_text("utf-8")))


def traceback(said: str) -> str:
    """What Python prints where an exception ends a script."""
    return f'Traceback (most recent call last):\n  File "script.py", line 3, in f\n    f(x)\n    ~~~^^^\n{said}\nbye'


def test_a_failure_that_no_script_shows_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reproducing, "scripted", lambda *_: Scripted(case="c", script="", why_not="integers: no"))
    done = typed("script", "faults:api=raises:m_splits=2", "--device", "cpu", "--output", str(tmp_path / "script.py"))
    assert (done.code, done.out, list(tmp_path.iterdir())) == (1, "", [])
    assert "expected a script that shows the failure" in done.err
    assert "integers: no" in done.err


# What a process printed before it ended with exit code 1 -> whether that is the exception of the case.
EXCEPTIONS = {
    "the same, with other numbers": (traceback("RuntimeError: no strides of 64"), True),
    "the same, of a module": (traceback("torch.RuntimeError: no strides of 16"), True),
    "after others": (traceback("KeyError: 'x'") + "\n" + traceback("RuntimeError: no strides of 16"), True),
    "other words": (traceback("RuntimeError: no strides of 16 are known"), False),
    "a type that ends alike": (traceback("MyRuntimeError: no strides of 16"), False),
    "a type that begins alike": (traceback("RuntimeErrors: no strides of 16"), False),
    "words without a traceback": ("RuntimeError: no strides of 16", False),
    "the cause of another": (traceback("RuntimeError: no strides of 16") + "\n" + traceback("KeyError: 'x'"), False),
}


@pytest.mark.parametrize(("output", "same"), EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_an_exception_is_known_by_its_type_and_its_words(output: str, same: bool) -> None:  # noqa: FBT001
    ran = Ran(fault="RuntimeError", exit_status="exit code 1", output=output)
    assert shows(ran, RAISED) is same


RAISED = Failure(
    "case",
    Outcome.RAISED,
    "RuntimeError",
    "expected gradients; the candidate raised RuntimeError in forward, microbatch 0: no strides of 16",
)

# How a process ended -> what it shows.
ENDINGS: dict[str, tuple[Ran, set[Outcome]]] = {
    "a fault": (Ran(fault=f"{FAULT} x", exit_status="exit code 1", output=f"{FAULT} x"), {Outcome.MISSING}),
    "a pass": (Ran(exit_status="exit code 0"), set()),
    "an import that fails": (
        Ran(fault="ImportError: no te", exit_status="exit code 1", output=traceback("ImportError: no te")),
        set(),
    ),
    "the exception": (
        Ran(fault="RuntimeError", exit_status="exit code 1", output=traceback("RuntimeError: no strides of 16")),
        {Outcome.RAISED},
    ),
    "the signal": (Ran(fault="signal 6 (SIGABRT)", exit_status="signal 6 (SIGABRT)"), {Outcome.CRASHED}),
    "another signal": (Ran(fault="signal 11 (SIGSEGV)", exit_status="signal 11 (SIGSEGV)"), set()),
    "no end": (Ran(fault="did not end within 1 s", exit_status="time limit"), {Outcome.TIMED_OUT}),
}


@pytest.mark.parametrize(("ran", "of"), ENDINGS.values(), ids=ENDINGS)
def test_a_process_shows_one_kind_of_failure_and_no_other(ran: Ran, of: set[Outcome]) -> None:
    failures = [
        Failure("wgrad", Outcome.MISSING, "none"),
        RAISED,
        Failure("case", Outcome.CRASHED, "signal 6 (SIGABRT)"),
        Failure("case", Outcome.TIMED_OUT, "time limit"),
    ]
    assert {failure.outcome for failure in failures if shows(ran, failure)} == of


def test_a_process_that_does_not_end_is_stopped() -> None:
    ran = execute("import time\nprint('waits', flush=True)\ntime.sleep(60)\n", 3.0)
    assert (ran.exit_status, ran.output) == ("time limit", "waits")


def test_a_process_reads_nothing_and_its_last_words_are_kept() -> None:
    ran = execute("import sys\nprint(repr(sys.stdin.read()))\nprint('x' * 10000)\nsys.exit(3)\n", 20.0)
    assert (ran.exit_status, set(ran.output)) == ("exit code 3", {"x"})
    assert 3900 < len(ran.output) <= 4000


def fake(fails: set[str], passes: set[str], header: str = "") -> Scripted:
    """What comes of scripts of which these texts fail, and these pass; all others do neither."""

    def run(text: str, _: str) -> Ran:
        first = text.strip().strip('"')
        if first in fails:
            return Ran(fault=f"{FAULT} lost", exit_status="exit code 1", output=f"{FAULT} lost")
        return Ran(exit_status="exit code 0") if first in passes else Ran(fault="no", exit_status="exit code 2")

    case = Case.parse("te:api=module:single_grouped_weight=1:bias=1")
    failure = Failure("wgrad", Outcome.INEXACT, "doubled")
    return scripted(
        failure,
        case,
        [*list(variants(case))[:2], *contrasts(case, ["module", "op"])],
        lambda one, data: [f'"{one} {data}"'],
        run,
        Headers(lambda result: [header or f'"""{result.in_words}"""'], lambda _, case: [f'"""{case}"""']),
    )


OWN = "te:api=module:single_grouped_weight=1:bias=1 integers"
RIGHT = "torch:api=loop:single_grouped_weight=1:bias=1 integers"
DISCRETE, FUSED = (
    "te:api=module:bias=1 integers",
    "te:api=module:single_grouped_weight=1:fuse_wgrad_accumulation=1:bias=1 integers",
)


def test_a_script_is_shown_with_the_first_variant_that_passes() -> None:
    assert fake({OWN}, {RIGHT, DISCRETE}).in_words == (
        "fails 3 of 3, the variant with single_grouped_weight=0 passes 3 of 3"
    )
    assert fake({OWN}, {RIGHT, FUSED}).difference == "fuse_wgrad_accumulation=1"
    assert fake({OWN}, {RIGHT}).in_words == "fails 3 of 3"


def test_another_api_that_passes_is_the_contrast() -> None:
    op = "te:api=op:single_grouped_weight=1:bias=1"
    found = fake({OWN}, {RIGHT, DISCRETE, f"{op} integers"})
    assert (found.contrast, found.contrast_passes) == (op, TIMES)
    assert found.contrast_script == f'"""{op}"""\n"{op} integers"\n'
    assert (found.variant, found.in_words.count("passes")) == ("te:api=module:bias=1", 1)
    assert fake({OWN}, {RIGHT, DISCRETE}).contrast == ""


def test_only_an_api_that_passes_here_is_a_contrast_and_another_fault_is_none() -> None:
    sizes = "m_splits=2:microbatches=1"
    red = Case.parse(f"torch:api=grouped_mm:grad_output=expanded:{sizes}")
    with reproducing.bench(red, "cpu", 30.0) as on:
        assert on.contrasts(red) == [msgspec.structs.replace(red, api="loop")]
        assert on.contrasts(msgspec.structs.replace(red, api="loop")) == []
    assert reproducing.Bench(on.executor, "cpu").contrasts(Case.parse(f"faults:api=raises:{sizes}")) == []


def test_a_script_that_a_right_layer_does_not_pass_is_not_shown() -> None:
    found = fake({OWN}, {DISCRETE})
    assert (found.shows, found.script) == (False, "")
    assert "integers: torch's own layer does not pass either" in found.why_not


def test_a_script_that_also_fails_of_what_gradcheck_passed_is_not_shown() -> None:
    op = "te:api=op:single_grouped_weight=1:bias=1 integers"
    for beside, told in ((DISCRETE, "the variant with single_grouped_weight=0"), (op, "the same of api=op")):
        found = fake({OWN, beside}, {RIGHT})
        assert (found.shows, found.script) == (False, "")
        assert f"integers: {told} fails alike, which gradcheck passed" in found.why_not


@pytest.mark.parametrize("header", ('"""x"', '"""x""" + y', '"""x"""; import os', "# no docstring", '"""\0"""'))
def test_a_header_that_changes_what_is_run_is_not_shown(header: str) -> None:
    found = fake({OWN}, {RIGHT}, header)
    assert (found.shows, found.script) == (False, "")
    assert "the header of script changes what is run" in found.why_not


def test_no_foreign_word_ends_a_header() -> None:
    failure = Failure("case", Outcome.RAISED, 'E"""\n# coding: x\\')
    here = Environment(device_name='a \\" b"""')
    result = Scripted(case="evil:api=a", script="from gradcheck_cli.records.case import Case\n", fails=3, of=3)
    told = reproduction.header(result, failure, here, "0.1")
    assert len(told) == 4
    docstring = ast.literal_eval("\n".join(told))
    assert docstring.startswith(
        'case RAISED (E""" # coding: x\\): fails 3 of 3.\nevil:api=a\nIt needs gradcheck as well'
    )
    assert 'a \\" b"""' in docstring


def test_a_limit_that_a_right_layer_does_not_keep_says_nothing_of_this_one() -> None:
    case = Case.parse("te:api=module")
    late = Ran(fault="did not end within 2 s", exit_status="time limit")
    headers = Headers(lambda _: ['"""x"""'], lambda _, __: ['"""x"""'])
    failure = Failure("case", Outcome.TIMED_OUT, "time limit")
    found = scripted(failure, case, [], lambda one, _: [f'"{one}"'], lambda _, __: late, headers)
    assert "torch's own layer did not end within 2 s either, so that the limit says nothing" in found.why_not


def test_a_script_that_does_not_fail_is_not_shown() -> None:
    found = fake(set(), {OWN, RIGHT, DISCRETE})
    assert (found.shows, found.script) == (False, "")
    assert found.why_not.startswith("integers: fails 0 of 3; large integers: fails 0 of 3")


def test_the_nearest_variant_differs_in_one_axis() -> None:
    case = Case.parse("te:api=module:path=native:single_grouped_weight=1")
    told = [difference(case, one) for one in variants(case)]
    assert told[0] == "single_grouped_weight=0"
    assert [one for one in told if "," in one] == []


def test_only_what_is_red_is_a_failure() -> None:
    with reproducing.bench(Case.parse("torch:api=loop"), "cpu", 30.0) as on:
        assert worst_failure(on.judged(Case.parse("torch:api=loop:m_splits=2"))) is None
        assert on.limit >= 30.0 + reproducing.LEAST_START  # a script has its imports before it
