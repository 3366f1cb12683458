"""What does a script do in a process of its own? It names a fault, passes, or ends in another way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.scripted import Ran
from gradcheck_cli.reproduce.wanted import FAULT
from gradcheck_cli.roots import without_roots
from gradcheck_cli.workers.protocol import exit_status

KEPT = 4000  # characters of output


def execute(script: str, timeout: float) -> Ran:
    """Run a script as a user would, in an empty folder and a session of its own, which ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        return execute_in(Path(folder), script, timeout)


def execute_in(folder: Path, script: str, timeout: float) -> Ran:
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
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
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
    return _ran(process.returncode, said, ended)


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - KEPT))
    return without_roots(output.read().decode(errors="replace").strip())


def _ran(code: int, said: str, ended: str) -> Ran:
    """What came of it: a fault is a line that names one, an exception, a signal, or no end."""
    if ended or code == 0:
        return Ran(fault=ended, exit_status="time limit" if ended else "exit code 0", output=said)
    status = exit_status(code)
    named = [line for line in said.splitlines() if line.startswith(FAULT)]
    last = said.splitlines()[-1] if said else "nothing"
    return Ran(fault=named[-1] if named else status if code < 0 else last, exit_status=status, output=said)


def shows(ran: Ran, failure: Failure) -> bool:
    """Whether a script that ended like this has shown that failure, and not another."""
    named = ran.fault.startswith(FAULT)
    ways = {
        "TIMED_OUT": ran.exit_status == "time limit",
        "CRASHED": ran.exit_status.startswith("signal"),
        "RAISED": ran.exit_status == "exit code 1" and failure.diagnosis in ran.output and not named,
    }
    return ways.get(failure.outcome.value, ran.exit_status == "exit code 1" and named)
