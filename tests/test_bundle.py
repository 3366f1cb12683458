"""Does one command make a bug report of a run, true, whole and with nothing private in it?"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import report_samples as samples
from commands import ROOT, Done, child, typed, variables

from gradcheck_cli import bundling, packing, reproducing
from gradcheck_cli.context import begun, like
from gradcheck_cli.judge.rules import rules
from gradcheck_cli.records.base import from_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters import issue
from gradcheck_cli.reporters.markdown import LIMIT
from gradcheck_cli.reporters.read import journal, read
from gradcheck_cli.reporters.report_json import text as report_text
from gradcheck_cli.reproduce import private

CORE = ROOT / "reports" / "te-2.17.1-h200" / "core-cublas-13.5"
FP16 = CORE.parent / "fp16-bias-cublas-13.5"
RED = "torch:api=grouped_mm:grad_output=expanded"
CASES = (RED, "torch:api=grouped_mm", "torch:api=loop:grad_output=expanded", "torch:api=loop")
DTYPES, NAMES = ("fp16", "fp32"), ("doubled", "holds expert 1")
# Of a candidate whose maintainers ask for no more.
PLAIN_FIELDS = [
    "Describe the bug",
    "To reproduce",
    "Expected behavior",
    "Actual behavior",
    "Versions",
    "Additional context",
]
FIELDS = [
    "Describe the bug",
    "Steps/Code to reproduce bug",
    "Expected behavior",
    "Actual behavior",
    "Environment overview (please complete the following information)",
    "Environment details",
    "Device details",
    "Additional context",
]
# Planted under these names, and looked for afterwards.
PRIVATE = {
    "user": "mallory",
    "host": "gpu-node-17",
    "home": "/home/mallory/te",
    "folder": "/scratch/acme/secret-model",
    "IPv4": "10.12.7.3",
    "IPv6": "fe80::1ff:fe23:4567:890a",
    "GitHub": "gh" + "p_" + "a1B2" * 9,
    "Hugging Face": "hf" + "_" + "aBcD" * 8,
    "AWS": "AKI" + "A" + "IOSFODNN7EXAMPLE",
    "NGC": "bDRn" * 21,
    "secret": "hunter2",
}
PLANTED = (
    "mallory@gpu-node-17 in {home}, {folder}/x; {IPv4} and {IPv6}; {GitHub} {Hugging Face} {AWS} {NGC}; "
    "DB_PASSWORD={secret}; cublaslt 13.5.1, driver 580.159.04"
).format(**PRIVATE)


def bundled(run: Path, *arguments: str) -> Done:
    return child("bundle", str(run), "--output", str(run / "out"), *arguments)


def members(run: Path) -> dict[str, str]:
    with zipfile.ZipFile(run / "out" / "bundle.zip") as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def fields(text: str) -> list[str]:
    return re.findall(r"^\*\*(.+)\*\*$", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few cases on the CPU, one of them red, and its bundle."""
    folder = tmp_path_factory.mktemp("run") / "run"
    asked = [part for case in CASES for part in ("--case", case)]
    assert child("run", "--device", "cpu", *asked, "--output", str(folder), "--quiet").code == 1
    done = bundled(folder, "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    return folder


def test_a_bundle_holds_report_journal_environment_scripts_trail_logs_and_hashes(run: Path) -> None:
    assert sorted(members(run)) == [
        "SHA256SUMS",
        "contrast.py",
        "environment.json",
        "issue.md",
        "journal.jsonl",
        "minimised.json",
        "report.json",
        "script.py",
        "variant.py",
        "worker-1.log",
    ]
    assert members(run)["issue.md"] == (run / "out" / "issue.md").read_text()


def test_what_is_in_it_are_the_records_of_the_run(run: Path, tmp_path: Path) -> None:
    found = members(run)
    assert from_json(found["report.json"], Report).verdicts == read(run).verdicts
    (tmp_path / "journal.jsonl").write_text(found["journal.jsonl"])
    assert len(list(journal(tmp_path / "journal.jsonl"))) == len(list(journal(run / "journal.jsonl")))
    assert from_json(found["minimised.json"], Minimised).asked == RED


def test_its_scripts_do_what_the_report_says(run: Path, tmp_path: Path) -> None:
    codes = {}
    for name in ("script.py", "variant.py", "contrast.py"):
        (tmp_path / name).write_text(members(run)[name])
        done = subprocess.run([sys.executable, name], cwd=tmp_path, env=variables(), capture_output=True, check=False)
        codes[name] = done.returncode
    assert codes == {"script.py": 1, "variant.py": 0, "contrast.py": 0}
    text = members(run)["issue.md"]
    assert "fails 3 of 3, the variant with grad_output=random passes 3 of 3" in text
    assert members(run)["script.py"].rstrip() in text


def test_the_issue_names_the_api_the_condition_and_what_is_wrong(run: Path) -> None:
    text = members(run)["issue.md"]
    assert text.splitlines()[0] == (
        "# torch.nn.functional.grouped_mm: RuntimeError in backward: Invalid strides/sizes, got [0, 0] for strides and "
        "[96, 128] for sizes, with grad_output=expanded"
    )
    assert fields(text) == PLAIN_FIELDS
    assert "Transformer Engine" not in text
    assert "`torch.nn.functional.linear per expert`: all gradients are right, in 2 cases" in text
    assert "`grad_output=expanded` means: `y.sum().backward()`" in text
    assert f"It is of the smallest case that was found to fail like `{RED}`" in text
    for file, case in (("variant.py", "torch:api=grouped_mm:num_gemms=2"), ("contrast.py", "torch:api=loop")):
        told = next(line for line in text.splitlines() if line.startswith(f"`{file}`"))
        assert case in told
        assert ("grad_output=expanded" in told) == (file == "contrast.py")  # the variant is the nearest cause
        assert told.endswith("It passes 3 of 3.")


def test_a_case_that_fails_otherwise_here_has_no_report_of_the_recorded_failure(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("out"))
    report = (folder / "report.json").read_text()
    assert "RuntimeError" in report
    (folder / "report.json").write_text(report.replace("RuntimeError", "KeyError"))
    done = typed("bundle", str(folder), "--device", "cpu")
    assert done.code == 2
    assert f"expected {RED} to fail here as in the record; found another failure" in done.err
    assert "recorded: case RAISED (KeyError): expected" in done.err
    assert "here:     case RAISED (RuntimeError): expected" in done.err
    assert not (folder / "bundle").exists()


def test_one_altered_byte_is_told(run: Path, tmp_path: Path) -> None:
    assert child("verify", str(run / "out" / "bundle.zip")).code == 0
    data = bytearray((run / "out" / "bundle.zip").read_bytes())
    data[data.index(b"report.json") + 40] ^= 1
    (tmp_path / "bundle.zip").write_bytes(data)
    done = child("verify", str(tmp_path / "bundle.zip"))
    assert done.code == 1
    assert done.out.startswith("altered: report.json: expected sha256 ")


def test_nothing_private_is_in_any_file(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("out"))
    _plant(folder)
    assert bundled(folder, "--no-run").code == 0
    found = members(folder)
    leaks = [(name, what) for name, text in found.items() for what, word in PRIVATE.items() if word in text]
    assert leaks == []
    for name in ("report.json", "journal.jsonl", "worker-1.log", "issue.md"):
        plain = found[name].replace("\\", "").replace("`", "")
        assert "<user>@<host> in <home>/te, <folder>; <address> and <address>; <token> <token>" in plain, name
        assert "cublaslt 13.5.1, driver 580.159.04" in plain, name
    assert from_json(found["report.json"], Report).environment.variables == {"NVTE_TEST": "1"}


def _plant(folder: Path) -> None:
    """The same text into the report, the journal and the log; options that name paths, a variable that is a secret."""
    report = json.loads((folder / "report.json").read_text())
    report["run"]["command"] += ["--known", "/home/mallory/te/known.toml", f"--last-failed={PRIVATE['folder']}/run"]
    report["run"]["options"] = {"GRADCHECK_OUTPUT": "/home/mallory/te/run", "WANDB_API_KEY": PRIVATE["secret"]}
    report["environment"]["system"] = report["environment"]["container"] = PLANTED
    report["environment"]["installed"] = {"torch": PLANTED}
    report["environment"]["variables"] = {"NVTE_TEST": "1", "NVTE_TOKEN": PRIVATE["secret"], "HOSTNAME": "gpu-node-17"}
    for verdict in report["verdicts"]:
        for finding in verdict["findings"]:
            finding["why"] = PLANTED
    (folder / "report.json").write_text(json.dumps(report))
    with (folder / "worker-1.log").open("a") as log:
        log.write(f"{PLANTED}\nmallory was here\n")
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        if line["event"] == "verdict":
            line["verdict"]["notes"] = [PLANTED]
    torn = json.dumps({"event": "verdict", "why": PLANTED})[:-9]
    (folder / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + torn)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The issue of the recorded run of 2.17.1, from its files alone."""
    output = tmp_path_factory.mktemp("seed")
    done = child("bundle", str(CORE), "--no-run", "--output", str(output))
    assert done.code == 0
    assert done.err.startswith("gradcheck: 36 cases of this failure are known as https://github.com/NVIDIA/")
    return (output / "issue.md").read_text()


HELD = {
    "title": "# te.GroupedLinear(single_grouped_weight=True): no weight gradient (wgrad) after backward\n",
    "known": "\n\nThis failure is known as https://github.com/NVIDIA/TransformerEngine/issues/3234, in "
    "`transformer-engine >=2.14,<2.19, sm90`",
    "switch": "GroupedLinear(single_grouped_weight=True)`, with `NVTE_GROUPED_LINEAR_SINGLE_PARAM=1` set: no weight",
    "condition": "all 36 cases of `te.GroupedLinear` with `single_grouped_weight=True`, and in none of the 66 others",
    "unfused": "- `fuse_wgrad_accumulation=False`: `weight.grad` stays None (18 cases)\n",
    "fused": "- `fuse_wgrad_accumulation=True`: `weight.main_grad` keeps what it held before backward (18 cases)\n",
    "not as asked": "12 cases with `dtype=fp32` asked for `path=native` and silently ran `path=legacy`; 6 of them are "
    "among those that fail, the other 6 were not judged.",
    "the others": "output and input gradient (dgrad) are right, in the 30 cases that ran as asked.",
    "dtypes": "`dtype` bf16, fp16 and fp32",
    "consequence": "the optimiser sees no update",
    "isolation": "With `single_grouped_weight=False` and nothing else changed, it passes: `te:api=module:path=legacy`",
    "no script": "No script was run for this report",
    "expected": "- `fuse_wgrad_accumulation=True`: the gradient of every expert's weight has been added to what",
    "matrix": "| `te.GroupedLinear` | `True` | `True` | 18 | right | right | **none** |",
    "version": "- Transformer Engine version: 2.17.1\n",
    "variable": "- `NVTE_GROUPED_LINEAR_SINGLE_PARAM=1`\n",
    "device": "- GPU model: NVIDIA H200 (sm_90)\n",
    "contrast": "`te.ops.GroupedLinear` with `single_grouped_weight=True`: all gradients are right, in 18 cases",
    "gradcheck": "Written by gradcheck 0.1.0: the harness that ran this",
    "again": "`gradcheck run --provider te --matrix core --mutants all --format table",
}
# Words of gradcheck's own, which say nothing to those who have never seen it; and marks that are copied along.
OURS = ("MISSING", "REFUSED", "(none)", "untouched", "prefill", "exact data", "err/bound", "microbatch 0", "\\_", "\\[")


@pytest.mark.parametrize("part", HELD.values(), ids=HELD)
def test_the_recorded_run_gives_what_its_first_reporter_said(seed: str, part: str) -> None:
    assert part in seed


@pytest.mark.parametrize("word", OURS)
def test_it_is_written_in_the_words_of_those_who_read_it(seed: str, word: str) -> None:
    assert word not in seed


def test_the_fields_of_the_template_stand_in_their_order(seed: str) -> None:
    assert fields(seed) == FIELDS
    assert "--output" not in seed


def test_what_the_run_never_varied_is_part_of_the_condition() -> None:
    one = begun(read(FP16), "", FP16)
    assert issue.title(one) == (
        "te.GroupedLinear(fuse_wgrad_accumulation=False, bias=True): wrong weight gradient (wgrad), low-precision "
        "accumulation, with m_splits!=all_empty and path=legacy and dtype=fp16"
    )
    assert "All of them had `path=legacy` (a GEMM for each expert), `dtype=fp16`, `bias=True`" in issue.text(one)


def test_numbers_are_told_without_units_and_are_said_to_be_of_their_case() -> None:
    one = begun(read(FP16), "", FP16)
    smaller = Scripted(case="te:api=module:dtype=fp16:num_gemms=1", script="x = 1\n", fails=3, of=3)
    text = issue.text(one._replace(scripted=smaller))
    assert re.search(
        rf"- for example in `{one.verdict.case}`, \d+ of 6144 elements differ; expected 0\.\d+, found", text
    )
    assert "in units of" not in text
    assert "Its numbers are not those above, which are of another case." in text


def test_the_case_that_was_asked_for_is_the_one_that_is_isolated() -> None:
    fused = "te:api=module:path=native:single_grouped_weight=1:fuse_wgrad_accumulation=1:dtype=fp16"
    near = begun(read(CORE), fused, CORE).near
    assert near is not None
    assert (near.beside, near.case) == (fused, fused.replace(":single_grouped_weight=1", ""))


def test_only_what_is_right_in_every_case_is_a_contrast() -> None:
    cases = {"te:api=module": Outcome.MISSING, "te:api=op": Outcome.PASSED, "te:api=op:bias=1": Outcome.INEXACT}
    text = issue.text(told(samples.report(samples.verdict(case, outcome) for case, outcome in cases.items())))
    assert "For contrast" not in text


def test_each_kind_of_a_fault_has_its_script() -> None:
    one = begun(read(CORE), "", CORE)
    unfused, fused = (alike[0].case for alike in issue.evidence(one).kinds())
    assert (unfused, fused) == (one.verdict.case, f"{unfused}:fuse_wgrad_accumulation=1")
    shown = [Scripted(case=case, script=f"# {case}\n", fails=3, of=3) for case in (unfused, fused)]
    one = one._replace(scripted=shown[0], more=shown[1:])
    assert f"The same of `{fused}`, `script-2.py`: fails 3 of 3." in issue.text(one)
    assert packing.files(one, {}, private.Names())["script-2.py"] == f"# {fused}\n"


def test_a_buffer_that_is_none_is_named_as_it_is_in_each_case() -> None:
    none = samples.finding(Outcome.MISSING)
    none = msgspec.structs.replace(none, diagnosis="none", why="expected the gradient in main_grad; main_grad is None")
    cases = ("te:api=module", "te:api=module:fuse_wgrad_accumulation=1")
    report = samples.report(samples.verdict(case, Outcome.MISSING, findings=[none]) for case in cases)
    text = issue.text(told(report))
    assert "- `fuse_wgrad_accumulation=False`: `weight.grad` stays None (1 case)\n" in text
    assert "- `fuse_wgrad_accumulation=True`: `weight.main_grad` is None (1 case)\n" in text


def test_the_script_of_another_kind_is_as_small_as_the_first() -> None:
    one = begun(read(CORE), "", CORE)
    unfused, fused = (alike[0] for alike in issue.evidence(one).kinds())
    small = Case.parse("te:api=module:single_grouped_weight=1:num_gemms=1")
    assert str(like(small, unfused, fused)) == (
        "te:api=module:single_grouped_weight=1:fuse_wgrad_accumulation=1:num_gemms=1"
    )


def test_a_known_failure_is_one_of_the_versions_that_the_entry_names() -> None:
    report = samples.seed()
    versions = {**report.environment.versions, "transformer_engine": "2.19.0"}
    later = msgspec.structs.replace(report, environment=msgspec.structs.replace(report.environment, versions=versions))
    assert "2 of these 4 cases are known as https://" in issue.text(told(report))
    assert "known as" not in issue.text(told(later))


def told(report: Report, case: str = "", **more: Any) -> issue.Told:
    return begun(report, case, Path("run"))._replace(**more)


def test_an_issue_is_never_longer_than_github_accepts_and_is_cut_in_whole_parts() -> None:
    report = samples.many(3000)
    whole = issue.text(told(report))
    assert len(whole) <= LIMIT
    script = Scripted(case="c", script="x = 1\n" * 40, fails=3, of=3, output="ok\n" * 20)
    for limit in (20_000, 9_000, 5_000):
        text = issue.text(told(samples.seed(), scripted=script), limit)
        assert len(text) <= limit
        assert fields(text) == FIELDS
        assert text.count("```") % 2 == 0
        assert text.count("<details>") == text.count("</details>")
    assert "The table of what ran is left out here" in issue.text(told(samples.seed()), 2_500)


@pytest.mark.parametrize("outcome", [one for one in Outcome if not one.green and one is not Outcome.UNTESTED])
def test_every_fault_has_a_title_and_a_report(outcome: Outcome) -> None:
    one = told(samples.every_outcome(), next(v.case for v in samples.every_outcome().verdicts if v.outcome is outcome))
    assert issue.title(one).startswith("te.GroupedLinear: ")
    assert outcome.value not in issue.text(one)
    assert fields(issue.text(one)) == FIELDS


def test_no_two_faults_have_one_title() -> None:
    report = samples.every_outcome()
    red = [one.case for one in report.verdicts if not one.outcome.green and one.outcome is not Outcome.UNTESTED]
    assert len({issue.title(told(report, case)).partition(", with")[0] for case in red}) == len(red)


def test_a_container_is_named_with_the_commands_that_start_it() -> None:
    here = Environment(
        device_name="NVIDIA H100",
        variables={"NVIDIA_PYTORCH_VERSION": "26.06"},
        system="Ubuntu 24.04.2 LTS",
        container="Docker",
        installed={"transformer_engine": "pip, from sources at commit 2e559f06"},
    )
    text = issue.text(told(samples.seed(), here=here))
    assert "(please fill in)" not in text
    assert "docker run --gpus all --rm -it nvcr.io/nvidia/pytorch:26.06-py3`" in text
    assert "The environment above is that of the script. The run was recorded on NVIDIA H200" in text


def test_a_script_that_shows_nothing_is_not_shown() -> None:
    unseen = Scripted(case="c", script="", why_not="integers: fails 0 of 3", of=3)
    text = issue.text(told(samples.seed(), scripted=unseen))
    assert "No script shows this without gradcheck: integers: fails 0 of 3." in text
    assert "```" not in text


def saved(folder: Path, report: Report) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "report.json").write_text(report_text(report))
    return folder


def test_a_case_picks_its_own_rule(tmp_path: Path) -> None:
    report = samples.every_outcome()
    case = next(one.case for one in report.verdicts if one.outcome is Outcome.INEXACT)
    done = typed("bundle", str(saved(tmp_path / "run", report)), "--no-run", "--case", case)
    assert done.code == 0
    assert "te.GroupedLinear: wrong weight gradient (wgrad), doubled" in done.out
    assert (tmp_path / "run" / "bundle" / "bundle.zip").is_file()


def test_of_a_case_with_two_failures_as_grave_the_rule_and_the_script_show_the_same() -> None:
    wgrad = samples.finding(Outcome.INEXACT)
    bgrad = msgspec.structs.replace(wgrad, slot="bgrad[3]")
    both = samples.verdict("te:api=op:bias=1", Outcome.INEXACT, findings=[wgrad, bgrad])
    alone = [samples.verdict(f"te:api=op:dtype={one}:bias=1", Outcome.INEXACT, findings=[bgrad]) for one in DTYPES]
    shown = told(samples.report([both, *alone]), both.case)
    failure = reproducing.red(Seen(both), Case.parse(both.case), bundling.recorded(shown, both))
    assert (shown.rule.role, failure.role) == ("bgrad", "bgrad")
    # What nobody asked for is shown by a case that fails in no other way first.
    assert told(samples.report([both, *alone])).verdict in alone


class Seen(reproducing.Bench):
    """A bench that has run one case."""

    def __init__(self, verdict: Verdict) -> None:
        self._known = {Case.parse(verdict.case): verdict}


def test_a_rule_is_about_its_own_diagnosis_and_no_other_of_the_same_gradient() -> None:
    doubled, swapped = (msgspec.structs.replace(samples.finding(Outcome.INEXACT), diagnosis=one) for one in NAMES)
    both = samples.verdict("te:api=op", Outcome.INEXACT, findings=[doubled, swapped])
    alone = samples.verdict("te:api=op:dtype=fp16", Outcome.INEXACT, findings=[swapped])
    (rule,) = (one for one in rules([both, alone]) if one.diagnosis == swapped.diagnosis)
    assert (rule.shown_by(both), rule.shown_by(alone)) == (swapped, swapped)


def test_a_case_of_another_version_is_reported_by_its_name(tmp_path: Path) -> None:
    own = samples.verdict("te:api=op", Outcome.INEXACT)
    later = msgspec.structs.replace(own, case=f"{own.case}:layout=tiled", axes={**own.axes, "layout": "tiled"})
    folder = saved(tmp_path, samples.report([later]))
    assert typed("bundle", str(folder), "--no-run", "--case", later.case).code == 0
    done = typed("bundle", str(folder), "--case", later.case)
    assert (done.code, "unknown axis 'layout'" in done.err, "--no-run makes a bundle" in done.err) == (2, True, True)


BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a case that is none": (("--case", "te"), 2, "'te' is not a case"),
    "a case of another run": (("--case", "te:api=op:dtype=fp16"), 2, "expected a case of the run in"),
    "a case that passed": (("--case", "te:api=op:single_grouped_weight=1:num_gemms=2"), 2, "found PASSED"),
    "a case that cannot run here": (("--device", "cpu"), 2, "--no-run makes a bundle of what the files say"),
}


@pytest.mark.parametrize(("arguments", "code", "said"), BAD.values(), ids=BAD)
def test_what_cannot_be_reported_is_told_in_one_message(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = typed("bundle", str(saved(tmp_path, samples.seed())), *arguments)
    assert (done.code, said in done.err, "Traceback" in done.err) == (code, True, False)
    assert not (tmp_path / "bundle").exists()


def test_a_folder_without_a_run_and_a_green_run_have_nothing_to_report(tmp_path: Path) -> None:
    assert typed("bundle", str(tmp_path / "none"), "--no-run").code == 2
    done = typed("bundle", str(saved(tmp_path, samples.report([samples.verdict("te:api=op")]))), "--no-run")
    assert (done.code, "nothing to report: no case of" in done.err) == (5, True)


def test_a_run_that_was_cut_off_is_reported_as_far_as_it_came(run: Path, tmp_path: Path) -> None:
    text = (run / "journal.jsonl").read_bytes()
    (tmp_path / "journal.jsonl").write_bytes(text[: text.rindex(b'{"event":"closed"') + 9])
    assert bundled(tmp_path, "--no-run").code == 0
    assert from_json(members(tmp_path)["report.json"], Report).exit_code == 130


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = typed("bundle", str(CORE), "--no-run", "--output", str(tmp_path / "file"))
    assert (done.code, "cannot write" in done.err) == (2, True)


def test_the_archive_is_json_where_it_says_so(run: Path) -> None:
    found = {name: text for name, text in members(run).items() if name.endswith(".json")}
    assert all(msgspec.json.decode(text) for text in found.values())
    assert set(json.loads(found["environment.json"])) == {"recorded", "script"}
