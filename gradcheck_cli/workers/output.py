"""What did a child print? A log of bounded size, and the last of it, however much it was."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

TAIL = 4000  # bytes of output worth keeping in a verdict
WHOLE = 1 << 20  # bytes of each case that the log holds from its beginning; of what follows it holds the tail
PIPE = 1 << 20  # bytes that a child may print while nobody reads
_AT_ONCE = 64  # reads before its reader looks at something else: a child may print for ever


class Output:
    """The reading end of what a child prints; read by whoever waits for the child, and never waited for."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab", buffering=0)
        self._tail = bytearray()
        self._room, self._left_out = WHOLE, 0
        self.ended = False  # nobody is left who could print
        self._end, self.write_end = os.pipe()
        os.set_blocking(self._end, False)
        with suppress(OSError, AttributeError):  # more than a machine grants, or another system than Linux
            fcntl.fcntl(self._end, fcntl.F_SETPIPE_SZ, PIPE)

    def fileno(self) -> int:
        """What to wait for."""
        return self._end

    def begin(self) -> None:
        """What is printed from now on is another case's."""
        self.drain()
        self._tell_the_rest()
        self._tail.clear()
        self._room, self._left_out = WHOLE, 0

    def drain(self) -> None:
        """Take what is there."""
        for _ in range(_AT_ONCE):
            try:
                chunk = os.read(self._end, PIPE)
            except BlockingIOError:
                return
            self.ended = not chunk
            if self.ended:
                return
            self._keep(chunk)

    def tail(self) -> bytes:
        """The last of it."""
        self.drain()
        return bytes(self._tail)

    def close(self) -> None:
        """Take what is still there, and close pipe and log."""
        self.drain()
        self._tell_the_rest()
        os.close(self._end)
        self._log.close()

    def _keep(self, chunk: bytes) -> None:
        self._tail += chunk
        del self._tail[:-TAIL]
        kept = chunk[: self._room]
        self._room -= len(kept)
        self._left_out += len(chunk) - len(kept)
        self._write(kept)

    def _tell_the_rest(self) -> None:
        if self._left_out:
            tail = self._tail[-self._left_out :]
            self._write(b"\n... (%d bytes are left out here)\n" % (self._left_out - len(tail)) + tail + b"\n")

    def _write(self, text: bytes) -> None:
        # A log that cannot be written, on a full disk for instance, is no reason to lose a verdict.
        with suppress(OSError):
            self._log.write(text)
