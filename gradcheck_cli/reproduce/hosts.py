"""Which host is it? Names without a dot, told by what stands around them.

By itself a bare name is a word as any other. What connects to it, starts something there or logs from there names it,
and where it is named once it is found everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradcheck_cli.reproduce.readings import Rule
from gradcheck_cli.reproduce.vocabulary import OWN

_NOBODY = {"localhost", "localdomain", "loopback"}
_NAME = r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*"
# Where any word could stand, a host is one with a number; dtypes, devices, ranks, GPUs and libraries have numbers too.
_NUMBERED = (
    r"(?!(?i:bf|fp|tf|b?float|u?int|complex|sm|cu|cuda|rank|gpu|step|task|thread|eth|ib|mlx|bond|v|c|x|utf|py|python)"
    rf"[_-]?\d|(?i:[abhl]|g[bh]|rtx|mi)\d+\b(?!-))(?=[A-Za-z-]*\d){_NAME}"
)
_CONNECTED = r"(?i:\bconnect(?:ed|ing|ion|s)?(?: \w+)? (?:to|from|with) (?:(?:host|node|peer|server) )?)"
_OPTION = r"(?:--(?:master[_-]addr|rdzv[_-]endpoint|host|hostname|node|nodelist)|\bMASTER_ADDR|\bhost(?:name)?)"
_REMOTE = r"\b(?:ssh|scp|sftp|rsync)(?: -\w+(?: \d+)?)*"
_DAY = r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"

_FORMS = [
    re.compile(rf"://(?P<it>{_NAME})(?=:\d{{2,5}}(?!\d))"),
    re.compile(r"(?<=\[)(?P<it>[A-Za-z][\w.-]*)(?=\]:\d{2,5}\b)"),  # of torch's rendezvous
    re.compile(rf"(?<![\w.:-])(?P<it>{_NAME}):\d+:\d+ \[\d+\] (?:NCCL|NVSHMEM)\b"),
    re.compile(rf"\bsrun: (?:error|warning): (?P<it>{_NAME}(?:\[[\d,-]+\])?): tasks? "),
    re.compile(rf" ON (?P<it>{_NAME}(?:\[[\d,-]+\])?) CANCELLED\b"),
    re.compile(rf"\bLinux (?P<it>{_NAME}) \d+\.\d+\S* #\d"),
    re.compile(rf"{_DAY} (?![A-Z]+ )(?P<it>{_NAME}) [\w./-]+(?:\[\d+\])?: ", re.MULTILINE),
    re.compile(rf"{_CONNECTED}(?P<it>{_NUMBERED})(?![\w.(=])"),
    re.compile(rf"{_OPTION}[ =]+(?P<it>{_NUMBERED})(?![\w.(=])"),
    re.compile(rf"{_REMOTE} (?P<it>{_NUMBERED})(?![\w.(=@])"),
]
# It may be a line of a file: that it is a host it says for this place alone.
_WITH_PORT = re.compile(rf"(?<![\w.:/@={{\[-])(?P<it>{_NUMBERED})(?<=[\d-]\d)(?=:\d{{4,5}}(?![\w:.]))")


def given_away(text: str) -> Iterator[str]:
    """The names with a number that a text says to be those of hosts: a word without one may stand elsewhere as well."""
    for form in _FORMS:
        for found in form.finditer(text):
            if _host(found) and re.search(r"\d$", found["it"]):
                yield found["it"]


def _host(found: re.Match[str]) -> str | None:
    return None if found["it"].lower() in _NOBODY or found["it"] in OWN else "<host>"


RULES = [Rule(form, _host) for form in (*_FORMS, _WITH_PORT)]
