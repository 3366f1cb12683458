"""What ends a run? Exceptions that a user can cause or must know of, with their exit codes.

    GradcheckError
    ├── UsageError            2    what was asked cannot be understood, or is not on this machine
    ├── HarnessError          3    gradcheck itself, its worker or its reference failed
    └── NothingSelected       5    the selection is empty: never green

Wrong gradients are findings, never exceptions.
"""

from __future__ import annotations


class GradcheckError(Exception):
    """Root: `str(error)` is the whole message for the user; `exit_code` is the process's."""

    exit_code = 3


class UsageError(GradcheckError):
    """Unknown axis, matrix, provider or device, malformed file or expression, unwritable output."""

    exit_code = 2


class HarnessError(GradcheckError):
    """A worker that cannot start, a candidate that cannot be imported, a device without memory."""

    exit_code = 3


class NothingSelected(GradcheckError):
    """No case is left to run: an empty matrix is never green."""

    exit_code = 5
