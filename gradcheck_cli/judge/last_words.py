"""What of a lost worker's last output tells how it was lost? Seldom its last line: there stacks and lists end."""

from __future__ import annotations

import re

_LONGEST = 300
_FATAL = re.compile(r"Fatal Python error: ")
# The headers of faulthandler's Python stacks; its C stacks and those of c10 errors have another beginning.
_OWN_STACK = re.compile(r"Current thread 0x.*\(most recent call first\):")
_ANY_STACK = re.compile(r"(Current thread 0x|Thread 0x|Stack ).*\(most recent call first\):")
_FRAME = re.compile(r'File ".*, line \d+')
# How a C++ program ends that let an exception go: the message, under which c10 prints advice and a stack.
_WHAT = re.compile(r"what\(\): *(?=\S)")
_NOISE = re.compile(
    rf"{_FATAL.pattern}|{_FRAME.pattern}|.*\(most recent call (first|last)\):|Extension modules: |frame #\d+: "
    r'|Binary file "|<no Python frame>|Garbage-collecting|\.\.\.|\S*", line \d+ in |Python runtime state: |\^+$'
)


def last_words(output: str) -> str:
    """The fatal error and where Python stood then, as faulthandler wrote them, and what was printed last before."""
    lines = [line for line in map(str.strip, output.splitlines()) if line]
    fatal = next((line for line in lines if _FATAL.match(line)), "")
    frame, printed = _innermost(lines), _printed(lines)
    if printed and (fatal or frame):
        printed = f"before that: {printed}"
    return "; ".join(part[:_LONGEST] for part in (fatal, frame, printed) if part)


def _innermost(lines: list[str]) -> str:
    """The innermost frame of the thread at work, else of the one named last."""
    for header in (_OWN_STACK, _ANY_STACK):
        found = [number for number, line in enumerate(lines) if header.match(line)]
        if found:
            below = lines[found[-1] + 1 : found[-1] + 2]
            return next((line for line in below if _FRAME.match(line)), "")
    return ""


def _printed(lines: list[str]) -> str:
    thrown = [_WHAT.sub("", line) for line in lines if _WHAT.match(line)]
    telling = thrown or [line for line in lines if not _NOISE.match(line)]
    return telling[-1] if telling else ""
