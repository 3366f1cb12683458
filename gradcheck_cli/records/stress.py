"""By which variables is a worker put under stress? They are its own: `gradcheck run --stress` sets them."""

from __future__ import annotations

SWITCH = "GRADCHECK_STRESSED"
VARIABLES = {
    SWITCH: "1",
    # One heap for all threads of the C library, so that what one gives back another gets.
    "MALLOC_ARENA_MAX": "1",
    # Large blocks of CUDA memory are given out whole or not at all (PyTorch, CUDA semantics, memory management).
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32",
}
