"""A stand-in for Transformer Engine: the small part of its interface that gradcheck calls, in plain torch on the CPU.

It behaves as the version in FAKE_TE_VERSION does on a Hopper GPU with the cuBLASLt in FAKE_TE_CUBLASLT: where gradients
go, which layouts and paths there are, what is refused and in which words. It says nothing of the speed or the numerics
of the real one. FAKE_TE_BROKEN makes the import fail, in these words, as a broken installation does.
"""

from __future__ import annotations

import os

__version__ = os.environ.get("FAKE_TE_VERSION", "2.17.1")

if os.environ.get("FAKE_TE_BROKEN"):
    # A library that is not there is an OSError of ctypes, one of another build an ImportError of its extension module.
    raise (ImportError if "symbol" in os.environ["FAKE_TE_BROKEN"] else OSError)(os.environ["FAKE_TE_BROKEN"])
