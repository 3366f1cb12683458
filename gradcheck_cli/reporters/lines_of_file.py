"""Which lines does a file hold? One after the other, so that a long file takes no memory; none without an end."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gradcheck_cli.errors import UsageError

# The largest observation yet has some hundred thousand bytes. A few bytes that are compressed can claim to be more than
# any disk holds: what is longer than this, in one line or in lines that hold nothing, was not written by gradcheck.
LARGEST = 64 << 20


def placed(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each line and its place, without those that hold nothing, and without a last one that was left unfinished."""
    held: tuple[str, bytes] | None = None
    for one in _numbered(path):
        if held:
            yield held
        held = one
    if held and is_json(held[1]):
        yield held


def is_json(line: bytes) -> bool:
    """Whether a text is JSON, and not nested without an end."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _numbered(path: Path) -> Iterator[tuple[str, bytes]]:
    blank, number = 0, 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(LARGEST + 1):
                number += 1
                # A machine that lost its power may have left zero bytes where the last lines would be.
                held = line.strip(b"\0 \r\n")
                blank += 0 if held else len(line)
                if len(line) > LARGEST or blank > LARGEST:
                    raise UsageError(
                        f"cannot read {path}, line {number}: expected records of at most {LARGEST >> 20} MiB each, "
                        f"found {'nothing but blanks' if blank > LARGEST else 'more'}; record the run again"
                    )
                if held:
                    yield f"{path}, line {number}", line.rstrip(b"\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"cannot read {path}: {error}; expected a whole file, as gzip writes it") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; expected a file of `gradcheck run`"
        ) from error
