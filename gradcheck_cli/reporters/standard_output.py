"""What becomes of a run when standard output takes no more? It goes on in silence, and its files are written."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TextIO

from gradcheck_cli.reporters.plain_text import printable

_BLANKS_AT_THE_END = re.compile(r" +(?=\n)")


class PatientOutput:
    """A stream as far as rich needs one; after its first failure, everything written to it goes nowhere.

    A reader that closes early (`gradcheck run | head -1`) has read what it wanted; any other failure is said once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._silent = False
        self.failure: OSError | None = None
        self.encoding = stream.encoding

    def isatty(self) -> bool:
        """Whether a person looks on."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Where the operating system sends it."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write, or do nothing; OSError never."""
        if not self._silent:
            try:
                # rich fills every line of a table to its width: blanks that a log or a diff only suffers from.
                self._stream.write(text if self.isatty() else _BLANKS_AT_THE_END.sub("", text))
                self._stream.flush()
            except OSError as failure:
                self._fall_silent(failure)
        return len(text)

    def flush(self) -> None:
        """Nothing is left to do: each write is flushed, so that its failure is its own."""

    def _fall_silent(self, failure: OSError) -> None:
        self._silent = True
        # What the stream's buffer still holds would fail once more when the process ends.
        with suppress(OSError):
            mine, nowhere = self._stream.fileno(), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, mine)
            os.close(nowhere)
        if not isinstance(failure, BrokenPipeError):
            self.failure = failure
            complain(
                f"cannot write to standard output: {failure.strerror or failure}; nothing more is printed there, "
                f"files are written all the same"
            )


def complain(what: str) -> None:
    """A line on stderr, where there is one that takes it."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"gradcheck: {printable(what)}\n")
            sys.stderr.flush()
