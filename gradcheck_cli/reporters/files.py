"""How does a file come to hold all of a report, or none of it?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.report import Report
from gradcheck_cli.reporters.protocol import Silent

_INSTEAD = "name another with --output"


def go_on(folder: Path) -> str:
    """What to do when a run could not write into its folder any more."""
    return f"when that is so, `gradcheck run --output {folder} --resume` runs what is left"


def write_whole(path: Path, content: str | bytes | Iterable[str], instead: str = _INSTEAD) -> None:
    """Write beside the file, then rename: a reader sees the old text or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                for part in [content] if isinstance(content, str | bytes) else content:
                    file.write(part.encode() if isinstance(part, str) else part)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error, instead) from error


def unwritable(path: Path, error: OSError, instead: str = _INSTEAD) -> UsageError:
    """The message for a file that cannot be written."""
    return UsageError(
        f"cannot write {path}: {error.strerror or error}; expected a folder that can be written to, "
        f"with room on its disk: {instead}"
    )


class FileReporter(Silent):
    """Writes one view of the report when the run is over."""

    def __init__(self, path: Path, view: Callable[[Report], str | Iterable[str]]) -> None:
        self._path = path
        self._view = view

    def closed(self, report: Report) -> None:
        """Write the file, whole."""
        write_whole(self._path, self._view(report), go_on(self._path.parent))
