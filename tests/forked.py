"""How does a script run again without the seconds that an import of torch takes? In a fork of a process that has it."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradcheck_cli.records.scripted import Ran
from gradcheck_cli.reproduce.execute import came_of, execute

# What torch imports only at the first backward that is given a gradient, which takes a second.
LATE = "torch.fx.experimental.symbolic_shapes"
# A server that has imported these and done nothing else: each fork begins where a script stands below its imports.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", LATE, "gradcheck_cli.compute.providers.faults"])


class Again:
    """Runs a script of a fault in an interpreter of its own the first time, and all else in a new fork each time."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def execute(self, script: str, timeout: float, first: Sequence[str] = ()) -> Ran:
        """What comes of it, as `execute` says it."""
        if script in self._seen or "gradcheck_cli" not in script:  # as the lines of torch's own layer
            return forked(script, timeout)
        self._seen.add(script)
        return execute(script, timeout, first)


def forked(script: str, timeout: float, _: Sequence[str] = ()) -> Ran:
    """What comes of it in a new fork."""
    with tempfile.TemporaryDirectory() as folder:
        file, output, code = Path(folder, "script.py"), Path(folder, "output"), Path(folder, "code")
        file.write_text(script, "utf-8")
        output.touch()
        process = FORKS.Process(target=_run, args=(str(file), str(output), str(code)))
        process.start()
        process.join(timeout)
        late = process.exitcode is None
        if late:
            process.kill()
            process.join()
        said = output.read_text("utf-8").strip()
        # Two threads that look after their children at once may each take the other's exit code for lost.
        ended = int(code.read_text("utf-8")) if code.exists() else process.exitcode or 0
    return came_of(ended, said, f"did not end within {timeout:g} s" if late else "")


def _run(file: str, output: str, code: str) -> None:
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(Path(file).parent)
    sys.argv = [file]
    ended = 1
    try:
        runpy.run_path(file, run_name="__main__")
        ended = 0
    except SystemExit as end:
        ended = int(end.code or 0) if isinstance(end.code, int | None) else 1
        raise
    finally:
        Path(code).write_text(str(ended), "utf-8")
