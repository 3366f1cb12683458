"""How does a test type a command?"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.commands.options import PREFIX

ROOT = Path(__file__).parent.parent


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def typed(*arguments: str) -> Done:
    """A command in this process, through the entry point that a user has."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["gradcheck", *arguments])
        for name in os.environ:
            if _mine(name):
                patch.delenv(name)
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def _mine(name: str) -> bool:
    """Whether it is of whoever runs the tests: what is printed must not be folded as that terminal is."""
    return name.startswith(PREFIX) or name == "COLUMNS"


def variables(**own: str) -> dict[str, str]:
    """The environment of a child: this one without what is its own, the package, and one thread."""
    inherited = {name: value for name, value in os.environ.items() if not _mine(name)}
    return {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **own}


def child(*arguments: str, cwd: Path = ROOT, **own: str) -> Done:
    """A command as a process of its own, with these variables."""
    command = [sys.executable, "-m", "gradcheck_cli", *arguments]
    ended = subprocess.run(command, cwd=cwd, env=variables(**own), capture_output=True, text=True, check=False)
    return Done(ended.returncode, ended.stdout, ended.stderr)
