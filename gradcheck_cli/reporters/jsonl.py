"""What happened, in the order in which it did? The journal, which is the truth, and the observations."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import Record, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Closed, Finished, Opened, Report, Resumed, Run, Seen, Settings, Started
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.files import go_on, unwritable
from gradcheck_cli.reporters.protocol import Silent
from gradcheck_cli.reporters.standard_output import complain

JOURNAL = "journal.jsonl"
OBSERVATIONS = "observations.jsonl"
REPORT = "report.json"
SECONDS_BETWEEN_SYNCS = 1.0


class Lines:
    """A file of records, one run's alone: each line reaches the system at once, and the disk within a second."""

    def __init__(self, path: Path, *, more: bool = False) -> None:
        """A new file; with `more` one that is there, to which lines are added after what is whole of it."""
        self._path = path
        self._changed = False
        # Never over an older run: what was recorded is worth more than what comes next.
        if path.exists() and not more:
            raise UsageError(
                f"{path} is there already: expected a folder without a run; name another with --output, or "
                f"take that run up again with --resume"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if more else "xb", buffering=0)
        except OSError as error:
            raise unwritable(path, error) from error
        self._lock()
        self._end = self._file.seek(0, os.SEEK_END)
        self._closed = threading.Event()
        self._syncing = threading.Thread(target=self._sync_each_second, daemon=True)
        self._syncing.start()

    def _lock(self) -> None:
        """The lock goes with the process, however that ends (flock(2))."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"{self._path}: expected a run that has ended; another gradcheck writes to it now: wait for its end, "
                f"or name another folder with --output"
            ) from None
        except OSError as error:
            complain(f"cannot lock {self._path} ({error.strerror or error}): let no second run write to this folder")

    def cut(self, end: int) -> None:
        """Leave the first bytes alone."""
        self._file.truncate(end)
        self._end = self._file.seek(end)

    def write(self, record: Record) -> None:
        """Append one record: all of it, or nothing."""
        line = memoryview(to_json(record).encode() + b"\n")
        try:
            if not os.fstat(self._file.fileno()).st_nlink:
                raise UsageError(
                    f"cannot write {self._path}: it was removed while the run went on; what was judged until then is "
                    f"in {self._path.parent / REPORT}, and `gradcheck run --last-failed {self._path.parent}` runs what "
                    f"was left"
                )
            written = 0
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except OSError as error:
            with suppress(OSError):
                self.cut(self._end)
            raise unwritable(self._path, error, go_on(self._path.parent)) from error
        self._end += len(line)
        self._changed = True

    def _sync_each_second(self) -> None:
        # What fails here fails again where the file is closed, and is told there.
        while not self._closed.wait(SECONDS_BETWEEN_SYNCS):
            with suppress(OSError):
                self.sync()

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        if self._changed:
            self._changed = False
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._file.closed:
            return
        self._closed.set()
        self._syncing.join()
        try:
            with self._file:
                self.sync()
        except OSError as error:
            raise unwritable(self._path, error) from error


class Journal(Silent):
    """Writes `journal.jsonl` as the run goes: whatever ends the run, every line up to then is on disk."""

    def __init__(
        self,
        folder: Path,
        lines: Lines | None = None,
        *,
        settings: Settings | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        """`resumed` stands before what a run that goes on adds to `lines`; one that is refused adds nothing."""
        self._folder = folder
        self._lines = lines or Lines(folder / JOURNAL)
        self._settings = settings
        self._resumed = resumed

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """The first line: who reads a run that was killed learns from it what never came to run."""
        if self._resumed is None:
            self._write(Opened(run=run, cases=list(cases), settings=self._settings))

    def environment(self, environment: Environment) -> None:
        """A line for each worker that came up."""
        self._write(Seen(environment=environment))

    def started(self, case: Case) -> None:
        """A line with every axis, defaults included: a later default cannot alter history."""
        self._write(Started(case=str(case), axes=case.axes()))

    def finished(self, verdict: Verdict) -> None:
        """A line with the whole verdict."""
        self._write(Finished(verdict=verdict))

    def closed(self, report: Report) -> None:
        """The last line."""
        interrupted = report.exit_code == 130
        self._write(Closed(seconds=report.seconds, exit_code=report.exit_code, interrupted=interrupted))
        self._lines.close()

    def stop(self) -> None:
        """Close the file."""
        self._lines.close()

    def _write(self, record: Record) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed:
            # The report of how it ended before is one no longer; until the next, the journal is the report.
            (self._folder / REPORT).unlink(missing_ok=True)
            self._lines.write(resumed)
        self._lines.write(record)


class Observations(Silent):
    """Writes `observations.jsonl`: enough to judge again without a device."""

    def __init__(self, folder: Path, lines: Lines | None = None) -> None:
        self._lines = lines or Lines(folder / OBSERVATIONS)

    def observed(self, observation: Observation) -> None:
        """One line a case."""
        self._lines.write(observation)

    def stop(self) -> None:
        """Close the file."""
        self._lines.close()
