"""What did a script hold when it failed? Its tensors, from one more run of the same lines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from gradcheck_cli.records.scripted import Ran
from gradcheck_cli.reproduce.wanted import FAULT

FILE = "tensors.safetensors"
LARGEST = 1 << 20  # bytes: the smallest case that fails holds a few hundred
# Of the last microbatch, but for `expected` and `found` of a parameter, which are sums. `found` is one tensor or one
# for each expert; what is missing has no entry.
_SAVED = f"""
from safetensors.torch import save_file
_held = dict(x=x, grad_output=g, expected=expected)
_held |= dict(weight=w) if "w" in globals() else {{}}
_held |= dict(found=found) if isinstance(found, torch.Tensor) else {{f"found.{{i}}": t for i, t in enumerate(found)}}
save_file({{k: t.detach().cpu().contiguous().clone() for k, t in _held.items() if t is not None}}, "{FILE}")
"""

Execute = Callable[[str, Path], Ran]


def held(script: str, execute: Execute) -> bytes:
    """A safetensors file of x (T, K), grad_output (T, N), what was expected, fp64, and what was found instead.

    Empty where the script compares no tensors, did not fail this time, or holds more than `LARGEST` bytes.
    """
    *lines, ending = script.splitlines()
    if not any(line.strip().startswith("expected") for line in lines):
        return b""
    with tempfile.TemporaryDirectory() as folder:
        ran = execute("\n".join([*lines, _SAVED, ending]) + "\n", Path(folder))
        file = Path(folder, FILE)
        if not ran.fault.startswith(FAULT) or not file.is_file() or file.stat().st_size > LARGEST:
            return b""
        return file.read_bytes()
