"""Which path did a forward of Transformer Engine's take, as its autograd node remembers it?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformer_engine

from gradcheck_cli.records.environment import version


def path_taken(output: torch.Tensor) -> str:
    """native, legacy or unknown, as the autograd node that made the output remembers it; "" where none made it.

    Of a chain both layers say theirs: `native and legacy` where one took another.

    Transformer Engine 2.17 and 2.18 keep `use_grouped_tensor_path` in the module's context, 2.19 and later
    `grouped_tensor_supported`; the op keeps `use_grouped_tensor_path` in the context of the basic op. Versions before
    2.17 have no native path on Hopper. A later one without either is unknown, which no request for a path can match.
    """
    if output.grad_fn is None:
        return ""
    said = [
        "native" if taken else "legacy"
        for node in contexts(output.grad_fn)
        for name in ("use_grouped_tensor_path", "grouped_tensor_supported")
        if (taken := getattr(node, name, None)) is not None
    ]
    if said:
        return " and ".join(dict.fromkeys(said))
    return "legacy" if version(str(transformer_engine.__version__)) < (2, 17) else "unknown"


def contexts(node: Any, depth: int = 4) -> Iterator[Any]:
    """An autograd node, the contexts of the basic ops that it stands for, and those behind it."""
    if node is None or depth == 0:
        return
    yield node
    yield from getattr(node, "basic_op_ctxs", None) or ()
    for parent, _ in node.next_functions:
        yield from contexts(parent, depth - 1)
