"""What does a script show, and how often did it?"""

from __future__ import annotations

from gradcheck_cli.records.base import SCHEMA_VERSION, Record


class Ran(Record, frozen=True, kw_only=True):
    """One execution in a process of its own."""

    fault: str = ""  # the line that named it, or how the process ended; "" where all was right
    exit_status: str = ""
    output: str = ""  # the last of it


class Scripted(Record, frozen=True, kw_only=True):
    """A script, and what came of running it and what passes beside it."""

    schema: int = SCHEMA_VERSION
    case: str
    script: str  # "" where none shows the failure
    why_not: str = ""
    fails: int = 0
    variant: str = ""  # the id of the passing case, one axis away
    variant_script: str = ""
    difference: str = ""  # `single_grouped_weight=0`
    variant_output: str = ""
    passes: int = 0
    of: int = 0
    output: str = ""  # what the failing script printed
    contrast: str = ""  # the id of the same case of another api of the provider, which passes
    contrast_script: str = ""
    contrast_output: str = ""
    contrast_passes: int = 0

    @property
    def shows(self) -> bool:
        """Whether it failed each time, and its variant, where there is one, passed each time."""
        return bool(self.script) and self.fails == self.of > 0 and (not self.variant or self.passes == self.of)

    @property
    def in_words(self) -> str:
        """`fails 3 of 3, the variant with single_grouped_weight=0 passes 3 of 3`."""
        said = f"fails {self.fails} of {self.of}"
        return f"{said}, the variant with {self.difference} passes {self.passes} of {self.of}" if self.variant else said
