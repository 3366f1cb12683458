"""What does a TOML file hold? Its text and its document; one that is too large, too deep or no TOML is told as such."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gradcheck_cli.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# tomllib reads a megabyte a second; the largest file in cases/ has 400 kB.
LARGEST = 8 << 20


def read(path: Path, kind: str = "a TOML file in UTF-8") -> str:
    """The text of a file, line ends as they are; UsageError where it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: expected {kind}, found: {error}") from None
    if len(text) > LARGEST:
        raise UsageError(f"{path} cannot be read: expected at most {LARGEST:,} characters, found more; split it")
    return text


def document(text: str, name: str) -> dict[str, Any]:
    """The text as TOML, whatever it says; `name` is what it is called in messages."""
    try:
        found = tomllib.loads(text)
        repr(found)  # what a message must be able to name: not with dotted keys nested by the thousand
    except tomllib.TOMLDecodeError as error:
        # A file that breaks off has no line to name but its last.
        where = str(error).replace("at end of document", f"at its end, line {len(text.splitlines())}")
        raise UsageError(f"{name} is not TOML: {where}") from None
    except RecursionError:
        raise UsageError(f"{name} cannot be read: expected a table of lists, found nesting without an end") from None
    except ValueError as error:  # int() takes no more than some thousand digits
        raise UsageError(f"{name} cannot be read: expected numbers of at most 20 digits, found: {error}") from None
    return found
