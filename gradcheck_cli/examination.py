"""What can be put on trial on this machine, and what would open the rest? Words for `doctor`."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradcheck_cli import __version__, installed, openings, plugins, unpacked
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Variables
from gradcheck_cli.reporters.lines import terminal_width
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import LocalExecutor

INDENT = "  "


def examine(asked: str, te: Sequence[Path]) -> list[str]:
    """Look at each candidate in a worker of its own, as a run would, and say what is open and what is closed.

    At Transformer Engine once for each unpacked one.
    """
    versions: list[Unpacked | None] = [*unpacked.every(te)]
    device, devices = installed.device(asked), installed.cuda_devices()
    lines = [
        f"gradcheck {__version__} · python {platform.python_version()} · {devices} CUDA device(s) · using {device}"
    ]
    for candidate in plugins.candidates().values():
        lines += ["", f"{candidate.name}: {candidate.summary}"]
        for one in (versions if candidate.distribution == unpacked.DISTRIBUTION else []) or [None]:
            why = installed.closed(candidate, one)
            found = [f"closed: {why}", *_assumed(candidate, one)] if why else _in_a_worker(candidate, device, one)
            lines += [f"{INDENT}{line}" for line in found]
    return lines + [line for why in plugins.broken().values() for line in ("", f"closed: {why}")]


def _in_a_worker(candidate: Candidate, device: str, te: Unpacked | None) -> list[str]:
    try:
        with tempfile.TemporaryDirectory() as logs, LocalExecutor(device=device, log_dir=Path(logs), te=te) as executor:
            environment = executor.environment(Variables(candidate.environment), sorted(candidate.apis.values()))
    except GradcheckError as error:
        return [f"closed: {error}"]
    facts = [f"{name} {version}" for name, version in environment.versions.items()]
    variables = [f"{name}={value}" for name, value in environment.variables.items()]
    head = [f"on {environment.device_name}", " · ".join(facts), *([" ".join(variables)] if variables else [])]
    return head + openings.table(candidate, environment, terminal_width() - len(INDENT))


def _assumed(candidate: Candidate, te: Unpacked | None) -> list[str]:
    """Without a device, what would run with one that is assumed; of a library that nobody has loaded, its metadata."""
    found = installed.version(candidate.distribution, te)
    if not found or not candidate.needs_cuda:
        return []
    name = candidate.distribution.replace("-", "_")
    environment = Environment(versions={name: found})
    told = openings.table(candidate, environment, terminal_width() - len(INDENT))
    return [f"{name} {found}, not loaded", *told]
