"""What did a child leave running? Whatever it started bears its mark, in a session of its own or not."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path

MARK = "GRADCHECK_WORKER"
_MOST_LOOKS = 20  # a process may start another one while it is looked for


def of_folder(folder: Path) -> str:
    """What the marks of all children begin with whose logs are in a folder."""
    return f"{folder.resolve()}#"


def new_mark(folder: Path) -> str:
    """A value of the variable MARK that no other child has."""
    return f"{of_folder(folder)}{secrets.token_hex(8)}"


def kill_marked(mark: str) -> int:
    """Kill every process of this user whose mark begins so; how many there were. Knows of none without a /proc.

    The end of a process group leaves those that began a group or a session of their own (setsid(2)).
    """
    killed = 0
    for _ in range(_MOST_LOOKS):
        found = sum(_killed(int(entry.name), mark) for entry in Path("/proc").glob("[0-9]*"))
        if not found:
            break
        killed += found
    return killed


def _killed(pid: int, mark: str) -> bool:
    """Whether this process bears the mark, and so was killed; of one that is dead already no variables are left."""
    wanted = f"{MARK}={mark}".encode()
    with suppress(OSError):
        handle = os.pidfd_open(pid)  # of this process alone, also where its number has gone to another one
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(one.startswith(wanted) for one in variables):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
