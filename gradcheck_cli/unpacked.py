"""Which Transformer Engine lies unpacked in a folder? Package metadata, read without importing it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from gradcheck_cli import paths
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.excerpt import shortened

DISTRIBUTION = "transformer-engine"
PACKAGE = "transformer_engine"


class Unpacked(NamedTuple):
    """One Transformer Engine of several, and the folder that stands in front of what a worker imports."""

    version: str
    folder: Path


def every(paths: Sequence[Path]) -> list[Unpacked]:
    """What lies in each folder, the oldest version first; UsageError where one holds none, or two hold the same."""
    by_version: dict[Version, Unpacked] = {}
    for path in paths:
        one = unpacked(path)
        twin = by_version.setdefault(Version(one.version), one)
        if twin is not one:
            raise UsageError(
                f"--te {path}: expected a version that no other --te has, found {one.version}, as in {twin.folder}; "
                f"leave one of them out"
            )
    return [one for _, one in sorted(by_version.items())]


def one(paths: Sequence[Path]) -> Unpacked | None:
    """The only one of those that are named, None where none is; UsageError where several are."""
    found = every(paths)
    if len(found) > 1:
        versions = " and ".join(each.version for each in found)
        raise UsageError(f"--te: expected one version, found {versions}; name the one under which the case fails")
    return found[0] if found else None


def unpacked(path: Path) -> Unpacked:
    """The Transformer Engine in a folder; UsageError says what is missing there."""
    if os.pathsep in str(path):
        raise _none(path, f"{os.pathsep!r} in its name, at which PYTHONPATH breaks")
    if not paths.is_dir(path):
        raise _none(path, "a file" if paths.is_file(path) else "nothing of that name")
    if not paths.is_dir(path / PACKAGE):
        raise _none(path, f"no {PACKAGE}/ in it")
    # Without metadata of this name Transformer Engine cannot be imported either: it takes its __version__ from there.
    try:
        versions = {found.version for found in metadata.distributions(name=DISTRIBUTION, path=[str(path)])}
    except (OSError, UnicodeDecodeError) as error:
        raise _none(path, f"a dist-info that cannot be read ({error})") from None
    if len(versions) != 1:
        raise _none(path, f"{PACKAGE}/ and {len(versions) or 'no'} dist-info of {DISTRIBUTION} beside it")
    (version,) = versions
    try:
        Version(version)
    except (ValueError, TypeError):
        raise _none(path, f"a dist-info that says Version: {shortened(version)}, which is none (PEP 440)") from None
    return Unpacked(version, path.absolute())


def _none(path: Path, found: str) -> UsageError:
    here = "" if path != Path() else " (an empty part of GRADCHECK_TE, as in A::B, names the current folder)"
    return UsageError(
        f"--te {shortened(path)}: expected a folder that holds {PACKAGE}/ and one {PACKAGE}-VERSION.dist-info, "
        f"found {found}{here}; "
        f"name the folder into which one version was installed: pip install --no-deps --target FOLDER ..."
    )
