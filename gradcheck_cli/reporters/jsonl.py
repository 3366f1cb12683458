"""What happened, in the order in which it did? The journal, which is the truth, and the observations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.base import Record, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Closed, Finished, Opened, Report, Run, Seen, Started
from gradcheck_cli.records.verdict import Verdict
from gradcheck_cli.reporters.files import unwritable
from gradcheck_cli.reporters.protocol import Silent

JOURNAL = "journal.jsonl"
OBSERVATIONS = "observations.jsonl"
_SECONDS_BETWEEN_SYNCS = 1.0


class Lines:
    """A file of records: flushed after each line, synced to the disk at most once a second."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._synced = clock()
        # Never over an older run: what was recorded is worth more than what comes next.
        if path.exists():
            raise UsageError(f"{path} is there already: expected a folder without a run; name another with --output")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("x", encoding="utf-8", newline="\n")
        except OSError as error:
            raise unwritable(path, error) from error

    def write(self, record: Record) -> None:
        """Append one record."""
        try:
            self._file.write(to_json(record) + "\n")
            self._file.flush()
            if self._clock() - self._synced >= _SECONDS_BETWEEN_SYNCS:
                self.sync()
        except OSError as error:
            raise unwritable(self._path, error) from error

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fsync(self._file.fileno())
        self._synced = self._clock()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        if self._file.closed:
            return
        try:
            with self._file:
                self.sync()
        except OSError as error:
            raise unwritable(self._path, error) from error


class Journal(Silent):
    """Writes `journal.jsonl` as the run goes: whatever ends the run, every line up to then is on disk."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder / JOURNAL)

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """The first line: who reads a run that was killed learns from it what never came to run."""
        self._lines.write(Opened(run=run, cases=list(cases)))

    def environment(self, environment: Environment) -> None:
        """A line for each worker that came up."""
        self._lines.write(Seen(environment=environment))

    def started(self, case: Case) -> None:
        """A line with every axis, defaults included: a later default cannot alter history."""
        self._lines.write(Started(case=str(case), axes=case.axes()))

    def finished(self, verdict: Verdict) -> None:
        """A line with the whole verdict."""
        self._lines.write(Finished(verdict=verdict))

    def closed(self, report: Report) -> None:
        """The last line."""
        interrupted = report.exit_code == 130
        self._lines.write(Closed(seconds=report.seconds, exit_code=report.exit_code, interrupted=interrupted))
        self._lines.close()

    def stop(self) -> None:
        """Close the file."""
        self._lines.close()


class Observations(Silent):
    """Writes `observations.jsonl`: enough to judge again without a device."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder / OBSERVATIONS)

    def observed(self, observation: Observation) -> None:
        """One line a case."""
        self._lines.write(observation)

    def stop(self) -> None:
        """Close the file."""
        self._lines.close()
