"""Is whatever goes wrong told in one clear message, with the right exit code, and nothing lost?"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
import report_samples as samples
import torch
from commands import ROOT, Done, child, typed, variables

from gradcheck_cli import installed, pipeline, selection
from gradcheck_cli.compute import machine
from gradcheck_cli.errors import HarnessError, UsageError
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.reporters.everyone import Everyone
from gradcheck_cli.reporters.files import FileReporter
from gradcheck_cli.reporters.jsonl import Journal
from gradcheck_cli.reporters.marks import code
from gradcheck_cli.reporters.read import read
from gradcheck_cli.reporters.report_json import text as report_text
from gradcheck_cli.session import Session

SMOKE = "--matrix smoke --provider torch"
STAND_IN = ROOT / "tests" / "fake_te"

# What stands in the files that the commands below name.
FILES = {
    "torn.toml": '[[block]]\ndtype = ["bf16"',
    "bracket.toml": '[[block]]\napi = "loop"\ndtype = ["bf16"\nbias = 1\n',
    "axis.toml": '[[block]]\napi = "loop"\n\nfuse = 1\n',
    "value.toml": '[[block]]\napi = "loop"\nbias = [\n  0,\n  7,\n]\n',
    "empty.toml": 'description = "nothing"\n',
    "latin.toml": "# caf\udce9\n[[block]]\n",
    "file": "not a folder",
    "run/journal.jsonl": "{}\n",
    "old/report.json": '{"schema": 99}\n',
    "torn/report.json": '{"schema": 1, "run"',
    "nothing/else": "",
}

# A command -> its exit code, and what its message must say.
USAGE: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "an axis value that is not one": (
        f"list {SMOKE} -k dtype=int8",
        2,
        ("-k: dtype=int8: expected bf16 or fp16 or fp32", "\n    dtype=int8\n          ^"),
    ),
    "an axis that is not one": (f"list {SMOKE} -k nosuch=1", 2, ("expected an axis, found 'nosuch'", "the axes are: ")),
    "an expression that breaks off": (
        f"run {SMOKE} -k 'api=loop and'",
        2,
        ("-k: expected an axis, `not` or `(`, found the end",),
    ),
    "an expression that matches nothing": (
        f"run {SMOKE} -k dtype=fp32",
        5,
        ("nothing to run: -k 'dtype=fp32' leaves none of the 8 cases of matrix smoke", "`gradcheck list` without it"),
    ),
    "a list of nothing": (f"list {SMOKE} -k dtype=fp32", 5, ("nothing to run: -k 'dtype=fp32'",)),
    "a provider that is not one": (
        "run --provider nope",
        2,
        ("unknown provider 'nope'; the providers are: te, torch",),
    ),
    "an api of another provider": (
        "run --case torch:api=module",
        2,
        ("provider torch has no api 'module'; its apis are: grouped_mm, loop",),
    ),
    "a case that is not one": (
        "show gibberish",
        2,
        ("'gibberish' is not a case: expected provider:api=..., as `gradcheck list` prints them",),
    ),
    "a case with a wrong value": (
        "run --case torch:api=loop:dtype=int8",
        2,
        ("'torch:api=loop:dtype=int8' is not a case: dtype=int8: expected bf16 or fp16 or fp32",),
    ),
    "a case whose splits and experts disagree": (
        "show torch:api=loop:m_splits=1,2:num_gemms=3",
        2,
        ("m_splits=1,2 names 2 experts, num_gemms=3",),
    ),
    "a case that is excluded": (
        "run --case torch:api=loop:path=native",
        5,
        ("nothing to run: all 1 selected cases are excluded", "ask for path=auto"),
    ),
    "a case of another provider than the one named": (
        "run --case torch:api=loop --provider te",
        2,
        ("--case names cases of provider torch, and --provider asks for te; leave --provider out, or drop",),
    ),
    "a matrix that is not one": (
        "run --matrix nope",
        2,
        (
            "unknown matrix 'nope': expected one of bugs, calling, core, exhaustive, fp8, full, issue-3234, nightly, "
            "paths, repeat, selftest, sequences, smoke, steps, streams",
            "or the path of a TOML file",
        ),
    ),
    "a matrix for another provider": (
        "run --matrix issue-3234 --provider torch",
        5,
        ("matrix issue-3234 has no case for provider torch; it is made for --provider te",),
    ),
    "a file that is not TOML": ("run --matrix bracket.toml", 2, ("bracket.toml is not TOML: ", "line 4")),
    "a file with an axis that is not one": (
        "run --matrix axis.toml",
        2,
        ("axis.toml, line 4: unknown axis 'fuse': expected one of provider, api,",),
    ),
    "a file with a wrong value": ("run --matrix value.toml", 2, ("value.toml, line 5: bias=7: expected 0 or 1",)),
    "a file without a block": ("run --matrix empty.toml", 2, ("empty.toml, line 1: expected at least one [[block]]",)),
    "a file that breaks off": ("run --matrix torn.toml", 2, ("torn.toml is not TOML: ", "at its end, line 2")),
    "a file in another encoding": ("run --matrix latin.toml", 2, ("expected a TOML file in UTF-8",)),
    "a folder for a matrix": ("run --matrix nothing", 2, ("unknown matrix 'nothing'",)),
    "a shard past the last": (f"run {SMOKE} --shard 5/4", 2, ("--shard 5/4: expected I/N with 1 <= I <= N",)),
    "a shard that is not one": (f"list {SMOKE} --shard half", 2, ("--shard half: expected I/N",)),
    "a shard of nothing": (
        f"run {SMOKE} -k api=loop --shard 9/9",
        5,
        ("-k 'api=loop' with --shard 9/9 leaves none of the 8 cases",),
    ),
    "a shard in digits of another script": (f"run {SMOKE} --shard ²/3", 2, ("--shard ²/3: expected I/N",)),
    "a shard of none": (f"list {SMOKE} --shard 0/0", 2, ("--shard 0/0: expected I/N with 1 <= I <= N",)),
    "a time limit that is no number": (
        f"run {SMOKE} --timeout nan",
        2,
        ("--timeout and --min-executed: expected a number; nan and inf are none",),
    ),
    "a time limit without an end": (f"run {SMOKE} --timeout inf", 2, ("expected a number; nan and inf are none",)),
    "a share that is no number": (f"run {SMOKE} --min-executed nan", 2, ("expected a number; nan and inf are none",)),
    "more tokens than any machine holds": (
        "run --case torch:api=loop:m_splits=99999999999",
        2,
        ("m_splits=99999999999: expected balanced, uneven", "or a list such as 64,0,128"),
    ),
    "a size that no machine holds": (
        "run --case torch:api=loop:in_features=9999999999999999999999",
        2,
        ("in_features=9999999999999999999999: expected a whole number, 1 to 1048576",),
    ),
    "an expression with a size that no machine holds": (
        f"list {SMOKE} -k in_features=9999999999999999999999",
        2,
        ("in_features=9999999999999999999999: expected a whole number, 1 to 1048576",),
    ),
    "te, named beside auto, where it is not installed": (
        "run --provider auto --provider te",
        2,
        ("provider te cannot run: transformer-engine is not installed",),
    ),
    "a provider that is not one, beside auto": (
        "run --provider auto --provider nope",
        2,
        ("unknown provider 'nope'; the providers are: te, torch",),
    ),
    "a case of te for torch alone": (
        "run --provider torch --case te:api=op --case torch:api=loop",
        2,
        ("--case names cases of provider te, and --provider asks for torch; leave --provider out, or drop these",),
    ),
    "te where it is not installed": (
        "run --provider te",
        2,
        ("provider te cannot run: transformer-engine is not installed", "gradcheck run --provider torch"),
    ),
    "a CUDA device where there is none": (
        f"run {SMOKE} --device cuda:0",
        2,
        ("--device cuda:0: expected a device that the CUDA driver offers, found no CUDA devices", "--device cpu"),
    ),
    "a device that is not one": (f"run {SMOKE} --device tpu", 2, ("--device tpu: expected cpu, cuda or cuda:N",)),
    "a device that is not one, for doctor": ("doctor --device gpu0", 2, ("--device gpu0: expected cpu, cuda or",)),
    "a format that is not one": (
        f"run {SMOKE} --format pdf",
        2,
        ("unknown format 'pdf'; the formats are: table,",),
    ),
    "an output with a run in it": (
        f"run {SMOKE} --output run",
        2,
        ("journal.jsonl is there already: expected a folder without a run; name another with --output",),
    ),
    "an output that is a file": (f"run {SMOKE} --output file", 2, ("cannot write file/journal.jsonl", "--output")),
    "an output under a file": (f"run {SMOKE} --output file/under", 2, ("cannot write", "Not a directory", "--output")),
    "an output where nothing can be": (
        f"run {SMOKE} --output /proc/run",
        2,
        ("cannot write /proc/run", "--output"),
    ),
    "a report of a folder without a run": (
        "report nothing",
        2,
        ("no run in nothing: expected report.json or journal.jsonl there, as `gradcheck run` writes them",),
    ),
    "a report of no folder": ("report nowhere", 2, ("no run in nowhere",)),
    "a report of another schema": (
        "report old",
        2,
        ("expected schema 1, found 99; this gradcheck reads schema 1 only: a later one wrote it",),
    ),
    "a report that is torn": ("report torn", 2, ("cannot read torn/report.json",)),
    "a report of a journal that is none": ("report run", 2, ("cannot read run/journal.jsonl, line 1",)),
    "last failed of a folder without a run": ("run --last-failed nothing", 2, ("no run in nothing",)),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with FILES in it, on a machine without a CUDA driver."""
    for name, content in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content.encode(errors="surrogateescape"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installed, "cuda_devices", lambda: 0)
    return tmp_path


@pytest.mark.parametrize(("command", "code", "words"), USAGE.values(), ids=USAGE)
def test_one_message_says_what_was_expected_what_was_found_and_what_to_do(
    folder: Path, command: str, code: int, words: tuple[str, ...]
) -> None:
    before = sorted(folder.rglob("*"))
    done = typed(*shlex.split(command))
    assert (done.code, done.out) == (code, "")
    assert [part for part in words if part not in done.err] == []
    assert done.err.startswith("gradcheck: ")
    assert sorted(folder.rglob("*")) == before  # nothing is left behind


TYPER = {
    "a share above one": (f"run {SMOKE} --min-executed 1.5", "--min-executed"),
    "a negative seed": (f"list {SMOKE} --seed -1", "--seed"),
    "a time limit of nothing": (f"run {SMOKE} --timeout 0", "--timeout"),
    "a number of findings that is not one": (f"run {SMOKE} --maxfail many", "--maxfail"),
    "an option that is not one": (f"run {SMOKE} --nosuch", "--nosuch"),
    "a command that is not one": ("nosuch", "nosuch"),
    "a show of nothing": ("show", "CASE"),
}


@pytest.mark.parametrize(("command", "named"), TYPER.values(), ids=TYPER)
def test_a_command_line_that_is_not_one_is_a_usage_error_that_names_it(command: str, named: str) -> None:
    done = typed(*shlex.split(command))
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert "Traceback" not in done.err


def test_a_message_reaches_stderr_of_the_process_itself() -> None:
    done = child("run", "--provider", "nope")
    assert done == (2, "", "gradcheck: unknown provider 'nope'; the providers are: te, torch\n")


def test_a_variable_with_a_wrong_value_is_told_like_the_option() -> None:
    assert child("list", GRADCHECK_MATRIX="nope").code == 2


def installed_te(folder: Path) -> None:
    """The metadata of an installed Transformer Engine."""
    (folder / "transformer_engine-2.17.1.dist-info").mkdir()
    said = "Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.17.1\n"
    (folder / "transformer_engine-2.17.1.dist-info" / "METADATA").write_text(said, encoding="utf-8")


def test_te_on_a_machine_without_a_gpu_says_that_it_needs_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_te(folder)
    monkeypatch.syspath_prepend(str(folder))
    done = typed("run", "--provider", "te")
    assert done.code == 2
    assert "it needs a CUDA device, and no CUDA driver answers here: run it on a machine with a GPU" in done.err


def test_te_asked_onto_the_cpu_says_which_device_to_choose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_te(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(installed, "cuda_devices", lambda: 1)
    done = typed("run", "--provider", "te", "--device", "cpu")
    assert done.code == 2
    assert "it needs a CUDA device, and --device is cpu: choose --device cuda:0" in done.err


def test_te_that_is_broken_at_import_ends_the_run_with_3_and_its_own_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("FAKE_TE_BROKEN", "transformer_engine_torch.so: undefined symbol: _ZN3c104cuda9SetDeviceEa")
    monkeypatch.setattr(installed, "require", lambda *_: None)  # it wants a CUDA device
    done = typed("run", "--provider", "te", "--device", "cpu", "--output", "new")
    assert done.code == 3
    assert "cannot be imported: ImportError: transformer_engine_torch.so: undefined symbol" in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Two CUDA devices for `machine`, on which torch.zeros raises what it is told to."""

    def out_of(error: Exception, free: int = 5 << 20) -> None:
        def raise_it(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 80 << 30))
        monkeypatch.setattr(torch, "zeros", raise_it)

    return out_of


def test_a_device_without_memory_says_how_much_is_free_and_what_to_do(cuda: Callable[..., None]) -> None:
    cuda(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64 MiB.\nmore"))
    with pytest.raises(HarnessError) as ended:
        machine.open_device("cuda:1")
    assert str(ended.value) == (
        "cuda:1 cannot be used: CUDA out of memory. Tried to allocate 64 MiB. (5 MiB of 81920 MiB are free; "
        "end what holds the rest, or choose another --device)"
    )


def test_a_device_that_torch_does_not_see_says_how_many_it_sees(cuda: Callable[..., None]) -> None:
    cuda(RuntimeError("never asked"))
    with pytest.raises(UsageError, match=r"no CUDA device cuda:2: torch .* sees 2; choose another --device"):
        machine.open_device("cuda:2")


class FailsAtTheSecond:
    """An executor whose second case finds no memory for the reference."""

    def run(
        self, jobs: list[Job], on_start: Callable[[Job], None], on_environment: Callable[[Environment], None]
    ) -> Iterator[tuple[Job, Observation]]:
        on_environment(Environment(device="cuda:0"))
        on_start(jobs[0])
        yield jobs[0], Observation(case=str(jobs[0].case), ending="crashed", exit_status="signal 11 (SIGSEGV)")
        on_start(jobs[1])
        raise HarnessError("no memory for the reference")


def test_a_failure_in_the_middle_loses_nothing_that_was_judged(tmp_path: Path) -> None:
    asked = selection.Asked(case=("torch:api=loop", "torch:api=loop:bias=1", "torch:api=loop:dtype=fp32"))
    selected, options = selection.select(asked), pipeline.RunOptions()
    reporter = Everyone([Journal(tmp_path), FileReporter(tmp_path / "report.json", report_text)])
    opening = pipeline.opening(asked, selected, options, pipeline.Typed(), datetime.now(timezone.utc))
    with pytest.raises(HarnessError, match="no memory for the reference"):
        Session(pipeline.plan(selected, options), reporter, FailsAtTheSecond()).run(opening)  # type: ignore[arg-type]
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [verdict["outcome"] for verdict in report["verdicts"]] == ["CRASHED", "UNTESTED", "UNTESTED"]
    assert report["exit_code"] == 3


def altered(folder: Path, **changes: object) -> Path:
    """A folder with a report of two cases, of which the second was altered after it was written."""
    plain = json.loads(report_text(samples.report([samples.verdict("te:api=op"), samples.verdict("te:api=op:seed=1")])))
    plain["verdicts"][1].update(changes)
    (folder / "report.json").write_text(json.dumps(plain), encoding="utf-8")
    return folder


AXES = Case.parse("te:api=op:seed=1").axes()
ALTERED: dict[str, tuple[dict[str, object], str]] = {
    "axes without a provider": (
        {"axes": {name: value for name, value in AXES.items() if name != "provider"}},
        "expected the provider of te:api=op:seed=1 among its axes, found none",
    ),
    "axes without an api": (
        {"axes": {"provider": "te", "apj": "op"}},
        "expected the api of te:api=op:seed=1 among its axes, found none",
    ),
    "axes of another case": (
        {"axes": {**AXES, "seed": 2}},
        "expected te:api=op:seed=2, as the axes say, found te:api=op:seed=1",
    ),
    "a case that stands twice": (
        {"case": "te:api=op", "axes": {**AXES, "seed": 0}},
        "expected te:api=op once, found it twice",
    ),
}


@pytest.mark.parametrize(
    "command", ("report {}", "explain {}", "diff {} {}", "known add {} --link https://x/1 --owner a")
)
@pytest.mark.parametrize(("changes", "told"), ALTERED.values(), ids=ALTERED)
def test_a_report_whose_cases_are_not_as_they_were_is_told_in_one_message(
    tmp_path: Path, changes: dict[str, object], told: str, command: str
) -> None:
    done = typed(*shlex.split(command.replace("{}", str(altered(tmp_path, **changes)))))
    assert (done.code, done.out) == (2, "")
    assert done.err == f"gradcheck: {tmp_path}/report.json was changed after it was written: {told}\n"


def test_axes_and_values_that_this_version_does_not_know_still_load(tmp_path: Path) -> None:
    axes = {"provider": "te", "api": "op", "dtype": "int4", "axis_to_come": 1}
    case = "te:api=op:dtype=int4:axis_to_come=1"
    verdict = read(altered(tmp_path, case=case, axes=axes, channels={"data_to_come": "no"})).verdicts[1]
    assert (verdict.case, verdict.axes) == (case, axes)
    assert typed("report", str(tmp_path), "--format", "markdown").code == 0


def test_axes_of_an_older_report_lack_those_that_came_later(tmp_path: Path) -> None:
    older = {name: value for name, value in AXES.items() if name not in {"grad_output", "microbatches"}}
    assert read(altered(tmp_path, axes=older)).verdicts[1].axes == older


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A finished run of two cases."""
    verdicts = [samples.verdict("te:api=op"), samples.verdict("te:api=op:seed=1")]
    writer = Everyone([Journal(tmp_path), FileReporter(tmp_path / "report.json", report_text)])
    writer.opened(samples.RUN, [verdict.case for verdict in verdicts])
    for verdict in verdicts:
        writer.started(Case.parse(verdict.case))
        writer.finished(verdict)
    writer.closed(samples.report(verdicts))
    return tmp_path


@pytest.mark.parametrize("kept", (0, 1, 400), ids=("nothing", "a byte", "its beginning"))
def test_a_report_that_breaks_off_is_read_from_the_journal_beside_it(recorded: Path, kept: int) -> None:
    whole, path = read(recorded), recorded / "report.json"
    path.write_bytes(path.read_bytes()[:kept])
    done = typed("explain", str(recorded))
    assert f"{path} breaks off, or holds no JSON: what is told is what {recorded / 'journal.jsonl'} holds" in done.err
    assert read(recorded).verdicts == whole.verdicts


def test_a_journal_with_a_broken_line_is_read_without_it_and_is_no_longer_green(recorded: Path) -> None:
    path = recorded / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")
    [at] = [i for i, line in enumerate(lines) if b'"verdict"' in line and b"seed=1" in line]
    path.write_bytes(b"\n".join([*lines[:at], lines[at][:50], *lines[at + 1 :]]))
    (recorded / "report.json").unlink()
    done = typed("report", str(recorded))
    assert f"{path}, line {at + 1} breaks off, or holds no JSON: it is passed over" in done.err
    found = read(recorded)
    assert [verdict.outcome.value for verdict in found.verdicts] == ["PASSED", "UNTESTED"]
    assert found.exit_code == 1


def test_foreign_text_in_a_code_span_is_one_line() -> None:
    assert code("26.06\n\n<img src=x>\n# x") == "`26.06 <img src=x> # x`"


def test_ctrl_c_before_the_run_began_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: selection.Asked) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(selection, "select", interrupt)
    assert typed("run", "--provider", "torch") == (130, "", "")


full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


def into(reader: str, *arguments: str) -> Done:
    """A command whose standard output goes into the shell's `reader`; exit code and stderr are the command's own."""
    shell = f'set -o pipefail; "$@" {reader}'
    command = ["bash", "-c", shell, "bash", sys.executable, "-m", "gradcheck_cli", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=variables(), capture_output=True, text=True, check=False)
    return Done(ended.returncode, ended.stdout, ended.stderr)


def test_a_reader_that_closes_early_is_no_traceback() -> None:
    done = into("| head -1", "list", "--matrix", "full", "--provider", "te")
    assert (done.out.count("\n"), done.err) == (1, "")


def test_a_run_whose_reader_closes_early_goes_on_and_writes_its_report(tmp_path: Path) -> None:
    kept = tmp_path / "run"
    done = into("| head -1", "run", "--provider", "torch", "--matrix", "smoke", "-k", "api=loop", "--output", str(kept))
    assert (done.code, done.err) == (0, "")
    assert json.loads((kept / "report.json").read_text("utf-8"))["tally"]["executed"] == 4


# Where standard output goes -> what stderr says of it.
OUTPUTS = {
    "a full disk": (
        "> /dev/full",
        "gradcheck: cannot write to standard output: No space left on device; "
        "nothing more is printed there, files are written all the same\n",
    ),
    "nowhere": (">&-", ""),
    "nowhere, and stderr neither": (">&- 2>&-", ""),
}


@full
@pytest.mark.parametrize(("reader", "told"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_run_goes_on_and_writes_its_report_whatever_becomes_of_its_output(
    tmp_path: Path, reader: str, told: str
) -> None:
    kept = tmp_path / "run"
    done = into(reader, "run", "--provider", "torch", "--matrix", "smoke", "-k", "api=loop", "--output", str(kept))
    assert done == (0, "", told)
    assert json.loads((kept / "report.json").read_text("utf-8"))["tally"]["executed"] == 4
    assert (kept / "journal.jsonl").read_text("utf-8").count("\n") == 11


def test_a_terminal_that_lacks_a_character_costs_neither_the_table_nor_a_file(tmp_path: Path) -> None:
    kept = tmp_path / "run"
    arguments = ("run", "--provider", "torch", "--matrix", "smoke", "-k", "api=loop", "--output", str(kept))
    done = child(*arguments, PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert "executed 4 of 4 asked (100%) ? 4 PASSED" in done.out
    assert (kept / "report.csv").exists()


@full
def test_a_report_that_cannot_be_printed_is_a_failure_as_nothing_else_is_left_of_it(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report_text(samples.seed()), encoding="utf-8")
    done = into("> /dev/full", "report", str(tmp_path))
    assert done.code == HarnessError.exit_code
    assert "gradcheck: expected to print the report whole, found No space left on device: make room" in done.err


@full
def test_a_full_disk_behind_standard_output_is_one_message() -> None:
    done = into("> /dev/full", "list", "--matrix", "smoke", "--provider", "torch")
    assert done.code == HarnessError.exit_code
    assert done.err.startswith("gradcheck: expected to go on, the system said: [Errno 28] No space left on device")


def test_the_current_folder_is_no_folder_for_a_run() -> None:
    done = typed("run", "--provider", "torch", "--matrix", "smoke", "--output", "")
    assert done.code == UsageError.exit_code
    assert "--output: expected a folder for this run alone" in done.err
