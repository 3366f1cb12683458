"""Does the parent process start without the heavy libraries, and therefore at once?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Refuses the heavy libraries, then behaves like `python -m gradcheck_cli`.
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformer_engine", "pandas"):
            raise AssertionError(f"{name} was imported in the parent process")

sys.meta_path.insert(0, Refuse())
sys.argv[0] = "gradcheck"
from gradcheck_cli.cli import main
main()
"""

COMMANDS = {
    "help": ["--help"],
    "help of run": ["run", "--help"],
    "version": ["--version"],
    "list": ["list", "--matrix", "full", "--provider", "torch"],
    "list --excluded": ["list", "--matrix", "full", "--provider", "te", "--excluded"],
    "show": ["show", "torch:api=loop:fuse_wgrad_accumulation=1"],
    "providers": ["providers"],
    "explain": ["explain", "reports/te-2.17.1-h200/core-cublas-13.5"],
}
# Several times what is measured on an idle machine, and less than half of what importing torch takes.
CPU_SECONDS = 0.8


def run(arguments: list[str], script: str = BLOCKED) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_runs_nothing_imports_nothing_heavy(arguments: list[str]) -> None:
    done = run(arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != ""


@pytest.mark.parametrize("library", ("torch", "transformer_engine", "pandas"))
def test_the_refusal_itself_works(library: str) -> None:
    done = run([], BLOCKED.replace("from gradcheck_cli.cli import main", f"import {library}"))
    assert f"{library} was imported in the parent process" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="the CPU time of children is read with resource")
@pytest.mark.parametrize("arguments", (COMMANDS["help"], COMMANDS["list"]), ids=("help", "list"))
def test_a_command_that_runs_nothing_is_quick(arguments: list[str]) -> None:
    # CPU time, not the clock, and the best of three: the machine may be busy with other tests.
    assert min(cpu_seconds(arguments) for _ in range(3)) < CPU_SECONDS


def cpu_seconds(arguments: list[str]) -> float:
    before = os.times()
    run(arguments)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
