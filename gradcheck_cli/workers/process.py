"""How is one child started, asked, heard and stopped?"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.roots import without_roots
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.protocol import Message, decode, encode, exit_status

GRACE = 2.0  # seconds that a child has to end before it is killed
LOOK = 0.5  # seconds between two looks at whether a silent child still lives
CHUNK = 1 << 20
TAIL = 4000  # bytes of output worth keeping

# The child gets its parent's sys.path, and an unpacked Transformer Engine before it. `python -m` would put the current
# folder first, and whoever stands in a checkout of torch or of Transformer Engine would import that folder instead of
# what is installed.
_BOOT = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from gradcheck_cli.workers.main import main; main()"


class Worker:
    """A child in a session of its own: jobs to its stdin, messages from a pipe, everything it prints in a log."""

    def __init__(
        self,
        *,
        device: str,
        engine: str,
        targets: list[str],
        variables: Variables,
        log: Path,
        te: Unpacked | None = None,
    ) -> None:
        self.variables = variables
        self.targets = targets
        self.log = log
        self._front = [str(te.folder)] if te else []
        self._unanswered = False
        self._log_begin = log.stat().st_size if log.exists() else 0
        self._unread = bytearray()
        self._results, write_end = os.pipe()
        command = [sys.executable, "-u", "-X", "faulthandler", "-c", _BOOT, "\n".join([*self._front, *sys.path])]
        command += ["--device", device, "--result-fd", str(write_end), "--engine", engine]
        command += [f"--target={target}" for target in targets] + [f"--te={folder}" for folder in self._front]
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(write_end,),
                    start_new_session=True,
                    # What the user has set wins, but where a case asks for something else by name.
                    env={**variables.unless_set, **os.environ, **variables.always, **self._python_path()},
                )
        finally:
            os.close(write_end)
        self._stdin = cast("BinaryIO", self._process.stdin)  # what stdin=PIPE makes
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)

    def _python_path(self) -> dict[str, str]:
        """For what the child starts itself: it has no sys.path of ours."""
        rest = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([*self._front, *([rest] if rest else [])])} if self._front else {}

    def serves(self, variables: Variables, targets: list[str]) -> bool:
        """Whether it is alive, idle, and was started with these variables and candidates."""
        fits = self.variables == variables and set(targets) <= set(self.targets)
        return fits and not self._unanswered and self._process.poll() is None

    def send(self, job: Job) -> None:
        """Ask for one case; that a child is dead shows when it is heard."""
        self._unanswered = True
        self._log_begin = self.log.stat().st_size
        with suppress(BrokenPipeError):
            self._stdin.write(encode(job))
            self._stdin.flush()

    def hear(self, seconds: float) -> Message:
        """Its next message; TimeoutError where none comes in time, EOFError where none can come any more."""
        deadline = time.monotonic() + seconds
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            self._unread += self._read(deadline)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        message = decode(line)
        self._unanswered = False
        return message

    def _read(self, deadline: float) -> bytes:
        # A process that the child left behind may hold the pipe open, so the end of the pipe is not the only
        # sign of death; what a dead child had written is still read.
        dead = False
        while True:
            left = deadline - time.monotonic()
            if self._poll.poll(1000 * max(0.0, min(left, LOOK))):
                if chunk := os.read(self._results, CHUNK):
                    return chunk
                raise EOFError
            if dead:
                raise EOFError
            if left <= 0:
                raise TimeoutError
            dead = self._process.poll() is not None

    def output(self) -> str:
        """The last of what it printed since it was sent a job, or since it started."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begin, size - TAIL))
            return without_roots(log.read(TAIL).decode(errors="replace").strip(), *self._front)

    def close(self) -> str:
        """End it by the end of its stdin, else by force; its exit status."""
        self._close_stdin()
        return self._end()

    def terminate(self) -> str:
        """End it by SIGTERM, which leaves its stacks in the log, else by force; its exit status.

        A child that is already dying keeps the status it dies with.
        """
        self._signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> str:
        try:
            self._wait()
        finally:
            # The whole group, so that nothing the child started outlives it. Its number cannot have gone to
            # strangers while a member lives.
            self._signal(signal.SIGKILL)
            self._wait()
            self._close_stdin()
            os.close(self._results)
        return exit_status(self._process.returncode)

    def _wait(self) -> None:
        # Not for ever: a process that is stuck inside a device driver does not die of SIGKILL.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)

    def _signal(self, number: signal.Signals) -> None:
        # PermissionError is what macOS says of a group whose members are all dead.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _close_stdin(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()
