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
from typing import BinaryIO, NamedTuple, cast

import msgspec

from gradcheck_cli.records.job import Job, Variables
from gradcheck_cli.roots import without_roots
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.output import Output
from gradcheck_cli.workers.protocol import Message, decode, encode, exit_status
from gradcheck_cli.workers.strays import MARK, kill_marked, new_mark

GRACE = 2.0  # seconds that a child has to end before it is killed
LOOK = 0.5  # seconds between two looks at whether a silent child still lives
_SHORT_LOOK = 0.02  # while it is ending
CHUNK = 1 << 20
LONGEST = 1 << 30  # bytes of one message: more is none

# The child gets its parent's sys.path, and an unpacked Transformer Engine before it. `python -m` would put the current
# folder first, and whoever stands in a checkout of torch or of Transformer Engine would import that folder instead of
# what is installed.
_BOOT = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from gradcheck_cli.workers.main import main; main()"


class Garbled(Exception):
    """A child said something that is no message: str(error) says what."""


class Place(NamedTuple):
    """Where a worker runs: a device as torch calls it there, and the variables that make it this worker's."""

    device: str
    variables: Variables = Variables()


class Worker:
    """A child in a session of its own: jobs to its stdin, messages from a pipe, what it prints from another one."""

    def __init__(
        self,
        *,
        place: Place,
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
        self._unread, self._searched = bytearray(), 0
        self._mark, self._last = new_mark(log.parent), b""
        self._output = Output(log)
        self._results, write_end = os.pipe()
        command = [sys.executable, "-u", "-X", "faulthandler", "-c", _BOOT, "\n".join([*self._front, *sys.path])]
        command += ["--device", place.device, "--result-fd", str(write_end), "--engine", engine]
        command += [f"--target={target}" for target in targets] + [f"--te={folder}" for folder in self._front]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._output.write_end,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
                env=self._environment(place.variables),
            )
        finally:
            os.close(write_end)
            os.close(self._output.write_end)
        self._stdin = cast("BinaryIO", self._process.stdin)  # what stdin=PIPE makes
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)

    def _environment(self, place: Variables) -> dict[str, str]:
        # What the user has set wins, but where a case asks for something else by name.
        rest = os.environ.get("PYTHONPATH")
        # For what the child starts itself: it has no sys.path of ours.
        front = {"PYTHONPATH": os.pathsep.join([*self._front, *([rest] if rest else [])])} if self._front else {}
        own = {**place.unless_set, **self.variables.unless_set, **os.environ, **self.variables.always}
        return {**own, **place.always, **front, MARK: self._mark}

    def filenos(self) -> list[int]:
        """What to wait for: any of them may have something to say."""
        return [self._results, *([] if self._output.ended else [self._output.fileno()])]

    def serves(self, variables: Variables, targets: list[str]) -> bool:
        """Whether it is alive, idle, silent, and was started with these variables and candidates."""
        fits = self.variables == variables and set(targets) <= set(self.targets)
        # What it says unasked would be taken for the answer to the next job.
        silent = not self._unread and not self._poll.poll(0)
        return fits and silent and not self._unanswered and self._process.poll() is None

    def send(self, job: Job) -> None:
        """Ask for one case; that a child is dead shows when it is heard."""
        self._unanswered = True
        self._output.begin()
        with suppress(BrokenPipeError):
            self._stdin.write(encode(job))
            self._stdin.flush()

    def heard(self) -> Message | None:
        """Its next message, None where there is none yet; EOFError where none can come any more, Garbled for others."""
        self._output.drain()
        # A process that the child left behind may hold the pipe open, so the end of the pipe is not the only
        # sign of death; what a dead child had written is still read.
        dead = self._process.poll() is not None
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self._searched > LONGEST:
                raise Garbled(f"{self._searched} bytes without an end")
            if not self._poll.poll(0):
                if dead:
                    raise EOFError
                return None
            if not (chunk := os.read(self._results, CHUNK)):
                raise EOFError
            self._unread += chunk
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        try:
            message = decode(line)
        except msgspec.MsgspecError as error:
            raise Garbled(str(error)) from error
        self._unanswered = False
        return message

    def output(self) -> str:
        """The last of what it printed since it was sent a job, or since it started."""
        return without_roots(self._last.decode(errors="replace").strip(), *self._front)

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
            kill_marked(self._mark)
            self._close_stdin()
            os.close(self._results)
            self._last = self._output.tail()
            self._output.close()
        return exit_status(self._process.returncode)

    def _wait(self) -> None:
        # Not for ever: a process that is stuck inside a device driver does not die of SIGKILL.
        deadline = time.monotonic() + GRACE
        while self._process.poll() is None and time.monotonic() < deadline:
            self._output.drain()  # it must not wait for a reader of its last words
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SHORT_LOOK)

    def _signal(self, number: signal.Signals) -> None:
        # PermissionError is what macOS says of a group whose members are all dead.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _close_stdin(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()
