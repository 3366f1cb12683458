"""How is a file named without naming the machine it lies on? As an importer sees it: below an entry of sys.path."""

from __future__ import annotations

import os
import sys
from functools import lru_cache


def without_roots(text: str, *more: str) -> str:
    """A text, a traceback for instance, in which every path below an entry of sys.path has lost that entry.

    `more` are entries that a worker has and this process has not.

    `File "/home/me/site-packages/torch/nn.py"` becomes `File "torch/nn.py"`: as useful, and fit to be published.
    """
    for root in _roots((*more, *sys.path)):
        text = text.replace(root, "")
    # A lone surrogate, from a file name for instance, cannot be written to any file.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=4)
def _roots(entries: tuple[str, ...]) -> list[str]:
    """The folders among them, the longest first."""
    roots = {os.path.join(entry, "") for entry in entries if len(entry) > 1 and os.path.isabs(entry)}  # noqa: PTH117, PTH118
    return sorted(roots, key=len, reverse=True)
