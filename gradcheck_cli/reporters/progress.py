"""How far is the run? A bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.report import Report, Run
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters.plain_text import excerpt
from gradcheck_cli.reporters.protocol import Silent
from gradcheck_cli.reporters.summary import counts, environment_line, title
from gradcheck_cli.reporters.table import style

_SECONDS_BETWEEN_LINES = 10.0
_LONGEST_WHY = 300


class Sofar:
    """The outcomes up to now, of the cases that were asked for."""

    def __init__(self) -> None:
        self.asked = 0
        self._outcomes: Counter[Outcome] = Counter()

    def add(self, verdict: Verdict) -> None:
        """Count a verdict; EXCLUDED was not asked for."""
        if verdict.outcome is not Outcome.EXCLUDED:
            self._outcomes[verdict.outcome] += 1

    @property
    def done(self) -> int:
        """Cases with a verdict."""
        return self._outcomes.total()

    def __str__(self) -> str:
        return counts({outcome.value: self._outcomes[outcome] for outcome in Outcome if self._outcomes[outcome]})


class BarReporter(Silent):
    """A bar with counts and time left, and the case at work under it; gone when the run is over."""

    def __init__(self, console: Console) -> None:
        self._sofar = Sofar()
        self._case = Text("starting a worker ...", style="dim", no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left {task.description}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("", total=None)
        self._live = Live(get_renderable=self._view, console=console, transient=True)

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """Say what is about to run, and show the bar."""
        self._progress.console.print(_announced(run, cases), soft_wrap=True)
        self._progress.update(self._task, total=len(cases))
        self._live.start()

    def started(self, case: Case) -> None:
        """Show the case at work."""
        self._case.plain = str(case)

    def finished(self, verdict: Verdict) -> None:
        """Move the bar."""
        self._sofar.add(verdict)
        self._progress.update(self._task, completed=self._sofar.done, description=str(self._sofar))

    def closed(self, report: Report) -> None:  # noqa: ARG002
        """Take the bar away."""
        self.stop()

    def stop(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def _view(self) -> Group:
        return Group(self._progress.get_renderable(), self._case)


class PlainReporter(Silent):
    """A line for each case that a gate would not let pass, as it comes, and one on the progress now and then."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._sofar = Sofar()
        self._began = self._told = clock()
        self._environment: Environment | None = None

    def opened(self, run: Run, cases: Sequence[str]) -> None:
        """Say what is about to run."""
        self._sofar.asked = len(cases)
        self._began = self._told = self._clock()
        self._say(_announced(run, cases))

    def environment(self, environment: Environment) -> None:
        """Say where, once for all workers that are alike."""
        if environment != self._environment:
            if self._environment is None:
                self._began = self._clock()  # the imports before say nothing about the cases to come
            self._environment = environment
            self._say(Text(environment_line(environment)))

    def finished(self, verdict: Verdict) -> None:
        """Say what is not green, and from time to time how far the run is."""
        self._sofar.add(verdict)
        if not verdict.green:
            why = f"{verdict.worst.slot}: {excerpt(verdict.worst.why, _LONGEST_WHY)}" if verdict.worst else ""
            said = Text.assemble((verdict.outcome.value, style(verdict.outcome)), f" {verdict.case} {why}")
            self._say(said)
        if self._clock() - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = self._clock()
            self._say(Text(f"{self._sofar.done} of {self._sofar.asked} cases · {self._sofar} · {self._left()}"))

    def _left(self) -> str:
        elapsed = self._clock() - self._began
        seconds = elapsed / max(self._sofar.done, 1) * (self._sofar.asked - self._sofar.done)
        return f"about {seconds:.0f} s left"

    def _say(self, line: Text) -> None:
        # Unwrapped: a log is searched line by line.
        self._console.print(line, soft_wrap=True)


def _announced(run: Run, cases: Sequence[str]) -> Text:
    return Text(f"{title(run)}, {len(cases)} case{'' if len(cases) == 1 else 's'}")
