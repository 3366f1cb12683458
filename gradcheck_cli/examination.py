"""What can be put on trial on this machine, and what would open the rest? Words for `doctor`."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradcheck_cli import __version__, installed, plugins, unpacked
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.capability import closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.unpacked import Unpacked
from gradcheck_cli.workers.executor import LocalExecutor


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
            lines += [f"  closed: {why}"] if why else _in_a_worker(candidate, device, one)
    return lines + [line for why in plugins.broken().values() for line in ("", f"closed: {why}")]


def _in_a_worker(candidate: Candidate, device: str, te: Unpacked | None) -> list[str]:
    try:
        with tempfile.TemporaryDirectory() as logs, LocalExecutor(device=device, log_dir=Path(logs), te=te) as executor:
            environment = executor.environment(candidate.environment, sorted(candidate.apis.values()))
    except GradcheckError as error:
        return [f"  closed: {error}"]
    facts = [f"{name} {version}" for name, version in environment.versions.items()]
    variables = [f"{name}={value}" for name, value in environment.variables.items()]
    head = [f"  on {environment.device_name}", f"  {' · '.join(facts)}"] + (
        [f"  {' '.join(variables)}"] if variables else []
    )
    return head + [f"  {line}" for line in _paths(candidate, environment)]


def _paths(candidate: Candidate, environment: Environment) -> list[str]:
    """Each api, layout and dtype that the capability table closes here; what is not named is open."""
    said: dict[str, list[str]] = {}
    for case in _points(candidate):
        for row in closed(case, environment):
            how = f"runs {row.falls_back_to} instead" if row.falls_back_to else "refused"
            said.setdefault(f"closed by {row.because}; opens with {row.unlock} ({how})", []).append(_short(case))
    if not said:
        return ["every path is open"]
    return [line for why, shorts in said.items() for line in (why, *(f"  {short}" for short in shorts))]


def _points(candidate: Candidate) -> list[Case]:
    paths = {
        api: ("legacy", "native") if (candidate.name, api) == ("te", "module") else ("auto",) for api in candidate.apis
    }
    return [
        Case.of({"provider": candidate.name, "api": api, "path": path, "single_grouped_weight": single, "dtype": dtype})
        for api in candidate.apis
        for path in paths[api]
        for single in (0, 1)
        for dtype in ("bf16", "fp16", "fp32")
    ]


def _short(case: Case) -> str:
    axes = case.axes()
    path = "" if case.path == "auto" else f" path={case.path}"
    return f"api={case.api}{path} single_grouped_weight={axes['single_grouped_weight']} dtype={case.dtype}"
