"""Engines for real worker processes that need no torch: a case's api names what happens while it runs."""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradcheck_cli.errors import HarnessError, UsageError
from gradcheck_cli.records.base import from_json
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.job import Job
from gradcheck_cli.records.observation import Observation, Raised
from gradcheck_cli.workers.executor import LocalExecutor


class Engine:
    """Runs each job's api, a method of this class, before it returns an observation."""

    def __init__(self, device: str, targets: list[str]) -> None:
        self.device = device
        self.targets = targets

    def environment(self) -> Environment:
        return Environment(device=self.device, variables={k: v for k, v in os.environ.items() if "WORKER_TEST" in k})

    def run(self, job: Job) -> Observation:
        seen = getattr(self, job.case.api)(job)
        if isinstance(seen, Observation):
            return seen
        return Observation(case=str(job.case), ending="finished", effective={"pid": os.getpid(), "says": seen or ""})

    def where(self, _: Job) -> str:
        """What it imports from first, and what a process that it starts would."""
        return f"{sys.path[0]} {os.environ.get('PYTHONPATH')}"

    def first_to_go(self, _: Job) -> str:
        """How much sooner than others the kernel kills this process where memory ends."""
        return Path("/proc/self/oom_score_adj").read_text("ascii").strip()

    def fine(self, _: Job) -> None:
        pass

    def raise_nothing(self, _: Job) -> None:
        time.sleep(0.1)

    def segfault(self, _: Job) -> None:
        say("about to read address 0")
        ctypes.string_at(0)

    def abort(self, _: Job) -> None:
        os.abort()

    def exit_0(self, _: Job) -> None:
        os._exit(0)

    def sys_exit_7(self, _: Job) -> None:
        sys.exit(7)

    def killed(self, _: Job) -> None:
        """As by a kernel that is out of memory."""
        os.kill(os.getpid(), signal.SIGKILL)

    def hang_in_c(self, _: Job) -> None:
        """A call that does not return, and lets no thread of Python run meanwhile."""
        say("launching a kernel")
        ctypes.PyDLL(None).sleep(600)

    def hold_and_hang_in_c(self, job: Job) -> None:
        with held():
            self.hang_in_c(job)

    def crash_once(self, job: Job) -> None:
        """As a case that suffers from what ran before it in its process."""
        flag = Path(os.environ["WORKER_TEST_FLAG"])
        if not flag.exists():
            flag.touch()
            self.segfault(job)

    def end_the_parent(self, _: Job) -> None:
        """As a node that is lost; whoever asked for this job hears no more of it."""
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    def end_the_parent_once(self, job: Job) -> None:
        flag = Path(os.environ["WORKER_TEST_FLAG"])
        if not flag.exists():
            flag.touch()
            self.end_the_parent(job)

    def hang(self, _: Job) -> None:
        say("waiting for a collective")
        time.sleep(600)

    def hang_on(self, job: Job) -> None:
        """A hang that SIGTERM does not end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.hang(job)

    def hold_and_hang(self, job: Job) -> None:
        with held():
            self.hang(job)

    def die_but_leave_a_child(self, _: Job) -> None:
        if os.fork() == 0:
            time.sleep(600)
        os._exit(5)

    def die_but_leave_a_holder(self, job: Job) -> None:
        with held():
            self.die_but_leave_a_child(job)

    def leave_a_daemon(self, _: Job) -> None:
        """A process in a session of its own, which no signal to the worker's group meets."""
        with held():
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)

    def die_but_leave_a_daemon(self, job: Job) -> None:
        self.leave_a_daemon(job)
        os._exit(5)

    def flood_and_crash(self, job: Job) -> None:
        for _repeated in range(64):
            os.write(2, b"the same line over and over\n" * 40_000)
        self.segfault(job)

    def speak_unasked(self, _: Job) -> None:
        """A thread that goes on after its case, and writes where only answers belong."""
        threading.Timer(0.2, lambda: os.write(result_fd(), b"done\n")).start()

    def print_no_more(self, _: Job) -> None:
        os.close(1)
        os.close(2)

    def close_the_pipe_and_hang(self, job: Job) -> None:
        os.close(result_fd())
        self.hang(job)

    def fork_and_return(self, _: Job) -> None:
        """Both processes go on with the worker's loop; the child is given the time to be first."""
        if os.fork():
            time.sleep(0.5)

    def noise(self, _: Job) -> None:
        for _repeated in range(2000):
            say('{"message": "result", "observation": {"case": "te:api=op", "ending": "finished"}}')
            os.write(2, b"\xff\xfe not text\n")

    def noise_and_hang(self, job: Job) -> None:
        self.noise(job)
        self.hang(job)

    def scribble(self, _: Job) -> None:
        os.write(result_fd(), b"Loading kernels ...\n")

    def five_megabytes(self, job: Job) -> Observation:
        return Observation(case=str(job.case), ending="finished", warnings=["w" * 5_000_000])

    def stdin(self, _: Job) -> str:
        return sys.stdin.readline() or "nothing"

    def import_colours(self, _: Job) -> str:
        return str(importlib.import_module("colorsys").__file__)

    def poison(self, job: Job) -> Observation:
        raised = Raised(type="CudaError", message="illegal address", during="backward", traceback="", sticky=True)
        return Observation(case=str(job.case), ending="raised", raised=raised, effective={"pid": os.getpid()})

    def suspect(self, job: Job) -> Observation:
        raised = Raised(type="OutOfMemoryError", message="", during="forward", traceback="", suspect=True)
        return Observation(case=str(job.case), ending="raised", raised=raised, effective={"pid": os.getpid()})

    def raise_here(self, _: Job) -> None:
        raise ZeroDivisionError("in the engine itself")

    def no_memory(self, _: Job) -> None:
        raise HarnessError("no memory for the reference")

    def other_case(self, _: Job) -> Observation:
        return Observation(case="te:api=op", ending="finished")

    def infinite(self, job: Job) -> Observation:
        return Observation(case=str(job.case), ending="finished", seconds=float("inf"))


class NoDevice(Engine):
    """A user's mistake, reported by the engine."""

    def __init__(self, *_: object) -> None:
        raise UsageError("no device cpu here")


class NoMemory(Engine):
    """A machine's fault, reported by the engine."""

    def environment(self) -> Environment:
        raise HarnessError("no memory left on the device")


class BrokenImport(Engine):
    """A defect of the engine: no error of ours."""

    def __init__(self, *_: object) -> None:
        raise ImportError("undefined symbol: cublasLtGroupedMatmul")


class HangsAtStart(Engine):
    """An import that never returns."""

    def __init__(self, *_: object) -> None:
        say("initialising NVML")
        time.sleep(600)


class SpeaksTooEarly(Engine):
    """An engine whose import writes where only messages belong."""

    def __init__(self, *_: object) -> None:
        os.write(result_fd(), b"hello\n")


class StartsOnce(Engine):
    """A device that is gone after its first worker."""

    def __init__(self, device: str, targets: list[str]) -> None:
        super().__init__(device, targets)
        flag = Path(os.environ["WORKER_TEST_FLAG"])
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            raise HarnessError("the device fell off the bus") from None


def say(text: str) -> None:
    """Print, as libraries do."""
    sys.stdout.write(f"{text}\n")


@contextmanager
def held() -> Iterator[None]:
    """Hold a lock as long as this process or a child of it lives, so that anyone can tell whether they do."""
    with Path(os.environ["WORKER_TEST_LOCK"]).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("locked")
        lock.flush()
        yield


def result_fd() -> int:
    """Where this worker's messages go."""
    return int(sys.argv[sys.argv.index("--result-fd") + 1])


def parent(log_dir: str, job: str) -> None:
    """A whole parent process whose one job never ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its background jobs to ignore it
    with LocalExecutor(device="cpu", log_dir=Path(log_dir), engine="misbehaving:Engine") as executor:
        list(executor.run([from_json(job, Job)], lambda _: None, lambda _: None))
