"""What lies at a path that somebody typed? A name that no file can have is a name of nothing."""

from __future__ import annotations

from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether a file lies there; False too where the name is longer than the system takes, or forbidden."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Whether anything lies there; False as above."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_dir(path: Path) -> bool:
    """Whether a folder lies there; False as above."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
