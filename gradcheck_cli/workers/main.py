"""How does a worker live? It loads the engine once, then runs case after case until its stdin ends."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import pkgutil
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, Protocol

from gradcheck_cli.errors import GradcheckError, HarnessError
from gradcheck_cli.records.base import from_json
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.unpacked import PACKAGE
from gradcheck_cli.workers.protocol import Failed, Ready, Result, Stopped, encode

_PR_SET_PDEATHSIG = 1


class Engine(Protocol):
    """What runs the cases; made as `Engine(device, targets)`, which imports torch and the targets' modules.

    Making it raises a GradcheckError where that cannot work on this machine.
    """

    def environment(self) -> Environment:
        """Where it runs, as it was when the libraries were imported."""

    def run(self, job: Job) -> Observation:
        """Run one case; what the candidate raises is in the observation, what escapes is gradcheck's own failure.

        A GradcheckError ends the run with its own message, anything else with its traceback.
        """


def main() -> None:
    """Say Ready or Stopped, then answer each job."""
    options = _options()
    _never_alone()
    # What the candidate starts must not keep the pipe open after this process is gone.
    os.set_inheritable(options.result_fd, False)  # noqa: FBT003 - it takes no names
    # A case over its time limit gets SIGTERM: the stacks that this leaves in the log say where it hangs.
    faulthandler.register(signal.SIGTERM, chain=True)
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(_take_stdin(), jobs), daemon=True).start()
    # A candidate that forks leaves a second process in this loop; only the one that was asked may answer.
    os.register_at_fork(after_in_child=lambda: os.close(options.result_fd))
    # Left open: the parent takes its end for the end of this process, whose last words come later than this function.
    results = os.fdopen(options.result_fd, "wb", closefd=False)
    try:
        engine: Engine = pkgutil.resolve_name(options.engine)(options.device, options.target)
        _require_from(options.te)
        _say(results, encode(Ready(environment=engine.environment())))
    except GradcheckError as error:
        _say(results, _stopped(error))
    else:
        while True:
            _say(results, _answer(engine, jobs.get()))


def _never_alone() -> None:
    """Die with the parent, also while a call holds the interpreter's lock, and before it where memory ends.

    PR_SET_PDEATHSIG of prctl(2); /proc/self/oom_score_adj of proc(5): the kernel kills this process and what it
    starts, and not whoever waits for them.
    """
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gradcheck-worker")
    parser.add_argument("--device", required=True)
    parser.add_argument("--result-fd", required=True, type=int)
    parser.add_argument("--engine", required=True, help="module:attribute")
    parser.add_argument("--target", action="append", default=[], help="module:attribute of a candidate; repeatable")
    parser.add_argument("--te", default="", help="the folder of an unpacked Transformer Engine")
    return parser.parse_args()


def _require_from(folder: str) -> None:
    """HarnessError where Transformer Engine was imported from elsewhere: it takes its version from what lies in front.

    Its `__version__` is that of the metadata on sys.path, whatever a hook found (transformer_engine/__init__.py).
    """
    module = sys.modules.get(PACKAGE) if folder else None
    found = os.path.dirname(getattr(module, "__file__", None) or "")  # noqa: PTH120 - as it was found, or nothing
    if module is None or (found and os.path.samefile(found, os.path.join(folder, PACKAGE))):  # noqa: PTH118, PTH121
        return
    raise HarnessError(
        f"expected the worker to import Transformer Engine from {folder}; it was imported from elsewhere\n"
        f"found {found or module}: see what puts another one before it, as an import hook of an editable install can"
    )


def _take_stdin() -> BinaryIO:
    """The jobs' end of the pipe; a candidate that reads stdin finds it empty instead of eating jobs."""
    jobs = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return jobs


def _read(lines: BinaryIO, jobs: SimpleQueue[bytes]) -> None:
    """Hand on each line; when the parent closes the pipe or dies, end at once, even while a case hangs.

    With all that the cases have started in this group, which no parent may be there to end.
    """
    for line in lines:
        jobs.put(line)
    os.killpg(0, signal.SIGKILL)


def _answer(engine: Engine, line: bytes) -> bytes:
    """One job's answer, ready to send: what cannot be read or written is gradcheck's failure too."""
    try:
        return encode(Result(observation=engine.run(from_json(line, Job))))
    except GradcheckError as error:
        return _stopped(error)
    except Exception:  # noqa: BLE001 - the product's one broad except: never a verdict, the parent raises it
        return encode(Failed(traceback=traceback.format_exc()))


def _stopped(error: GradcheckError) -> bytes:
    return encode(Stopped(exit_code=error.exit_code, text=str(error)))


def _say(results: BinaryIO, line: bytes) -> None:
    results.write(line)
    results.flush()
