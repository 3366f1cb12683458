"""What does a run of 100,000 cases take? Seconds and memory of each command on one: python benchmarks/scale.py [cases].

The run is made of recorded ones: their verdicts, and what was seen of them without its mutants, again and again under
seeds of their own.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters.read import read

REPORTS = Path(__file__).parent.parent / "reports"
FAILING, SEEN = REPORTS / "te-2.17.1-h200" / "core-cublas-13.5", REPORTS / "torch-cpu"
MOST_MB = 500
LEAST_PER_SECOND = 20_000  # of `list`


def again(recorded: Report, count: int) -> Iterator[Any]:
    """So many verdicts, each with an id of its own."""
    cases = [Case.of(verdict.axes) for verdict in recorded.verdicts]
    pairs = itertools.cycle(zip(cases, recorded.verdicts, strict=True))
    for number, (plain, verdict) in zip(range(count), pairs, strict=False):
        case = msgspec.structs.replace(plain, seed=1 + number // len(cases))
        yield msgspec.structs.replace(verdict, case=str(case), axes=case.axes())


def write_journal(folder: Path, recorded: Report, count: int) -> None:
    """A journal as a run writes it."""
    folder.mkdir()
    ids = [verdict.case for verdict in again(recorded, count)]
    with (folder / "journal.jsonl").open("wb") as file:
        opened = {"event": "run", "schema": 1, "run": recorded.run, "cases": ids}
        lines = [opened, {"event": "environment", "schema": 1, "environment": recorded.environment}]
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        for verdict in again(recorded, count):
            started = {"event": "started", "schema": 1, "case": verdict.case, "axes": verdict.axes}
            finished = {"event": "verdict", "schema": 1, "verdict": verdict}
            file.write(msgspec.json.encode(started) + b"\n" + msgspec.json.encode(finished) + b"\n")
        file.write(b'{"event":"closed","schema":1,"seconds":1.0,"exit_code":1}\n')


def write_observations(folder: Path, recorded: Report, count: int) -> None:
    """What was seen of each case."""
    with gzip.open(SEEN / "observations.jsonl.gz") as file:
        seen = {one["case"]: one for one in map(json.loads, file)}
    for one in seen.values():
        for channel in one["channels"]:
            channel["phases"] = [phase for phase in channel["phases"] if not phase.get("mutant")]
        one["mutants"] = []
    plain = [verdict.case for verdict in recorded.verdicts]
    with gzip.open(folder / "observations.jsonl.gz", "wb", compresslevel=1) as file:
        for number, verdict in enumerate(again(recorded, count)):
            file.write(msgspec.json.encode({**seen[plain[number % len(plain)]], "case": verdict.case}) + b"\n")


def measured(*arguments: str) -> tuple[int, float, int]:
    """The exit code of a command, its seconds of CPU, and the megabytes that it held at most."""
    child = subprocess.Popen([sys.executable, "-m", "gradcheck_cli", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10


def main() -> int:
    """Make the runs, then each command on them against its budget; 1 where one is over it."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    over = 0
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        failing, passing = read(FAILING), read(SEEN)
        write_journal(base / "old", failing, count)
        shutil.copytree(base / "old", base / "new")
        write_journal(base / "seen", passing, count)
        write_observations(base / "seen", passing, count)
        seeds = ", ".join(str(seed) for seed in range(1, 1 + count // 8))
        (base / "m.toml").write_text(
            f'[[block]]\napi = "loop"\nbias = [0, 1]\nfuse_wgrad = [0, 1]\ndtype = ["bf16", "fp32"]\nseed = [{seeds}]\n'
        )
        old, new = str(base / "old"), str(base / "new")
        commands = {
            "list": ("list", "--provider", "torch", "--matrix", str(base / "m.toml")),
            "report, from the journal": ("report", old),
            "report --format json": ("report", old, "--format", "json", "--output", str(base / "told")),
            "report --format csv": ("report", old, "--format", "csv", "--output", str(base / "told")),
            "report --format junit": ("report", old, "--format", "junit", "--output", str(base / "told")),
            "report --format markdown": ("report", old, "--format", "markdown", "--output", str(base / "told")),
            "report, from report.json": ("report", str(base / "told")),
            "explain": ("explain", old),
            "diff": ("diff", old, new),
            "judge": ("judge", str(base / "seen")),
        }
        for name, command in commands.items():
            if len(sys.argv) > 2 and not name.startswith(sys.argv[2]):
                continue
            code, seconds, peak = measured(*command)
            speed = f", {count / seconds:,.0f} cases a second" if name == "list" else ""
            bad = peak > MOST_MB or code not in {0, 1} or (name == "list" and count / seconds < LEAST_PER_SECOND)
            over += bad
            print(
                f"{name:26} exit code {code}, {seconds:6.1f} s of CPU, {peak} MB of {MOST_MB}{speed}{' OVER' * bad}",
                flush=True,
            )
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
