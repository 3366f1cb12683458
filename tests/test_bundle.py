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

from gradcheck_cli.bundling import chosen
from gradcheck_cli.records.base import from_json
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.minimised import Minimised
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.scripted import Scripted
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters import issue
from gradcheck_cli.reporters.markdown import LIMIT
from gradcheck_cli.reporters.read import journal, read
from gradcheck_cli.reporters.report_json import text as report_text

CORE = ROOT / "reports" / "te-2.17.1-h200" / "core-cublas-13.5"
RED = "torch:api=grouped_mm:grad_output=expanded"
CASES = (RED, "torch:api=grouped_mm", "torch:api=loop:grad_output=expanded", "torch:api=loop")
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
    assert len(journal(tmp_path / "journal.jsonl")) == len(journal(run / "journal.jsonl"))
    assert from_json(found["minimised.json"], Minimised).asked == RED


def test_its_scripts_do_what_the_report_says(run: Path, tmp_path: Path) -> None:
    codes = {}
    for name in ("script.py", "variant.py"):
        (tmp_path / name).write_text(members(run)[name])
        done = subprocess.run([sys.executable, name], cwd=tmp_path, env=variables(), capture_output=True, check=False)
        codes[name] = done.returncode
    assert codes == {"script.py": 1, "variant.py": 0}
    text = members(run)["issue.md"]
    assert "fails 3 of 3, the variant with bias=1 passes 3 of 3" in text
    assert members(run)["script.py"].rstrip() in text


def test_the_issue_names_the_api_the_condition_and_what_is_wrong(run: Path) -> None:
    text = members(run)["issue.md"]
    assert text.splitlines()[0] == (
        "# torch.nn.functional.grouped_mm: RAISED, an exception in place of gradients, with grad_output=expanded"
    )
    assert fields(text) == FIELDS
    assert "`torch.nn.functional.linear per expert`: all gradients right in 2 of 2 cases" in text


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
        plain = found[name].replace("\\", "")
        assert "<user>@<host> in <home>/te, <folder>/x; <address> and <address>; <token> <token>" in plain, name
        assert "cublaslt 13.5.1, driver 580.159.04" in plain, name
    assert from_json(found["report.json"], Report).environment.variables == {"NVTE_TEST": "1"}


def _plant(folder: Path) -> None:
    """The same text into the report, the journal and the log; options that name paths, a variable that is a secret."""
    report = json.loads((folder / "report.json").read_text())
    report["run"]["command"] += ["--known", "/home/mallory/te/known.toml", f"--last-failed={PRIVATE['folder']}/run"]
    report["run"]["options"] = {"GRADCHECK_OUTPUT": "/home/mallory/te/run", "WANDB_API_KEY": PRIVATE["secret"]}
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
    assert (done.code, done.err) == (0, "")
    return (output / "issue.md").read_text()


HELD = {
    "title": "# te.GroupedLinear(single_grouped_weight=True): wgrad MISSING, delivered nowhere after backward\n",
    "condition": "36 of the 36 cases with `api=module and single_grouped_weight=1`, and in none of the 66 others",
    "unfused": "- `fuse_wgrad_accumulation=0` (18 cases): MISSING (none): expected the gradient in .grad",
    "fused": "- `fuse_wgrad_accumulation=1` (18 cases): MISSING (untouched): expected the gradient in main\\_grad",
    "dgrad": "- dgrad arrives and is right in 30 of these 36 cases; it is REFUSED in the others.",
    "dtypes": "`dtype` (bf16, fp16, fp32)",
    "consequence": "the optimiser sees no update",
    "isolation": "`te:api=module:path=legacy`, which differs in `single_grouped_weight=0` alone, passes",
    "no script": "No script was run for this report",
    "expected": "`fuse_wgrad_accumulation=True`: the weight gradient of every expert, added to what `weight.main_grad`",
    "actual": "Forward and backward run, fprop and dgrad arrive and are right. wgrad MISSING",
    "matrix": "| module | legacy | 1 | 1 | fp32 | 3 | ok | ok | **MISSING 3/3** |",
    "version": "- Transformer Engine version: 2.17.1\n",
    "variable": "- `NVTE_GROUPED_LINEAR_SINGLE_PARAM=1`\n",
    "device": "- GPU model: NVIDIA H200 (sm_90)\n",
    "contrast": "`te.ops.GroupedLinear` with `single_grouped_weight=1`: all gradients right in 18 of 18 cases",
    "again": "`gradcheck run --provider te --mutants all --matrix core --format table",
}


@pytest.mark.parametrize("part", HELD.values(), ids=HELD)
def test_the_recorded_run_gives_what_its_first_reporter_said(seed: str, part: str) -> None:
    assert part in seed


def test_the_fields_of_the_template_stand_in_their_order(seed: str) -> None:
    assert fields(seed) == FIELDS
    assert "<details><summary>the full matrix</summary>" in seed
    assert "--output" not in seed


def told(report: Report, case: str = "", **more: Any) -> issue.Told:
    red, rule = chosen(report, case, Path("run"))
    return issue.Told(report=report, rule=rule, others=[], verdict=red)._replace(**more)


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
    assert "The table of the whole matrix is left out here" in issue.text(told(samples.seed()), 3_500)


@pytest.mark.parametrize("outcome", [one for one in Outcome if not one.green and one is not Outcome.UNTESTED])
def test_every_fault_has_a_title_and_a_report(outcome: Outcome) -> None:
    one = told(samples.every_outcome(), next(v.case for v in samples.every_outcome().verdicts if v.outcome is outcome))
    assert issue.title(one).startswith("te.GroupedLinear: ")
    assert outcome.value in issue.title(one)
    assert fields(issue.text(one)) == FIELDS


def test_a_container_is_named_with_the_commands_that_start_it() -> None:
    here = Environment(device_name="NVIDIA H100", variables={"NVIDIA_PYTORCH_VERSION": "26.06"})
    text = issue.text(told(samples.seed(), here=here))
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
    assert "te.GroupedLinear: wgrad INEXACT" in done.out
    assert (tmp_path / "run" / "bundle" / "bundle.zip").is_file()


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
