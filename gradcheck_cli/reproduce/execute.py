"""What does a script do in a process of its own? It names a fault, passes, or ends in another way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import IO

from gradcheck_cli.records.failure import Failure, worded
from gradcheck_cli.records.scripted import Ran
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce.wanted import FAULT
from gradcheck_cli.roots import without_roots
from gradcheck_cli.workers.protocol import exit_status

KEPT = 4000  # characters of output
# A frame of a traceback, and how much of a message's first line a verdict keeps (judge/effective.py): of a longer one
# the numbers shift where it is cut, and only its beginning is compared.
_FRAME = re.compile(r'  File ".*", line \d+')
_CUT, _COMPARED = 300, 200


def execute(script: str, timeout: float, first: Sequence[str] = ()) -> Ran:
    """Run a script as a user would, in an empty folder and a session of its own, which ends with it.

    `first` are folders that stand before all others that it imports from.
    """
    with tempfile.TemporaryDirectory() as folder:
        return execute_in(Path(folder), script, timeout, first)


def execute_in(folder: Path, script: str, timeout: float, first: Sequence[str] = ()) -> Ran:
    """The same in a folder in which what the script writes stays."""
    with tempfile.TemporaryFile() as output:
        file = folder / "script.py"
        file.write_text(script, "utf-8")
        process = subprocess.Popen(
            [sys.executable, str(file)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # An interpreter told where to look by its parent's sys.path finds what the workers found.
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*first, *(path for path in sys.path if path)])},
        )
        try:
            process.wait(timeout)
            ended = ""
        except subprocess.TimeoutExpired:
            ended = f"did not end within {timeout:g} s"
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said = _tail(output)
    return came_of(process.returncode, said, ended)


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - KEPT))
    return without_roots(output.read().decode(errors="replace").strip())


def came_of(code: int, said: str, ended: str) -> Ran:
    """What came of a process, by its last words: a fault is a line naming one, an exception, a signal, or no end."""
    if ended or code == 0:
        return Ran(fault=ended, exit_status="time limit" if ended else "exit code 0", output=said)
    status = exit_status(code)
    named = [line for line in said.splitlines() if line.startswith(FAULT)]
    last = said.splitlines()[-1] if said else "nothing"
    return Ran(fault=named[-1] if named else status if code < 0 else last, exit_status=status, output=said)


def shows(ran: Ran, failure: Failure) -> bool:
    """Whether a script that ended like this has shown that failure, and not another."""
    named = ran.fault.startswith(FAULT)
    if failure.outcome is Outcome.TIMED_OUT:
        return ran.exit_status == "time limit"
    if failure.outcome is Outcome.CRASHED:
        return ran.exit_status.startswith("signal") and ran.exit_status == failure.diagnosis
    if failure.outcome is Outcome.RAISED:
        return ran.exit_status == "exit code 1" and not named and _raised_alike(ran.output, failure)
    return ran.exit_status == "exit code 1" and named


def _raised_alike(output: str, failure: Failure) -> bool:
    """Whether the process ended with an exception of the same type and words, whatever the numbers in them."""
    kind, said = raised(output)
    if f".{kind}".endswith(f".{failure.diagnosis}"):
        wanted = failure.message.partition(f" raised {failure.diagnosis} in ")[2].partition(": ")[2]
        longest = _COMPARED if len(wanted) >= _CUT else None
        return worded(said[:_CUT])[:longest] == worded(wanted)[:longest]
    return False


def raised(output: str) -> tuple[str, str]:
    """The type that the last traceback names, and the first line of what the exception says; empty without one."""
    lines = output.splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    below = lines[frames[-1] + 1 :] if frames else []
    named, *rest = [*dropwhile(lambda line: line.startswith("    "), below), ""]
    kind, colon, said = named.partition(":")
    return kind, said.strip() or (next((line.strip() for line in rest if line.strip()), "") if colon else "")
