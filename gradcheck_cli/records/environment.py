"""Where did a run happen? Versions as they were loaded, the device, and the variables that change behaviour."""

from __future__ import annotations

import re

from gradcheck_cli.records.base import Record

Version = tuple[int, ...]


class Environment(Record, frozen=True, kw_only=True):
    """Read in the worker, after its imports; holds no user name, host name or path."""

    versions: dict[str, str] = {}  # python, torch, transformer_engine, cuda, driver, cublaslt, cudnn, ...
    device: str = "cpu"  # as torch names it: cpu, cuda:0
    device_name: str = ""
    compute_capability: tuple[int, int] | None = None
    variables: dict[str, str] = {}  # NVTE_* and the like, as they were when the library was imported
    system: str = ""  # the operating system, as it calls itself
    container: str = ""  # Docker, Podman, ...; "none seen" where nothing shows one; "" where nobody looked
    installed: dict[str, str] = {}  # a distribution of `versions` -> how: "pip, from a package index"

    def version(self, name: str) -> Version:
        """A version as numbers, () where the thing is not there."""
        return version(self.versions.get(name, ""))


def version(text: str) -> Version:
    """The leading release numbers of a version: '2.17.1+2e559f06' and '2.13.0a0' are (2, 17, 1) and (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
