"""What of a text is nobody's business? Names, homes, addresses, tokens and variables, each replaced by what it was."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gradcheck_cli.reproduce import hosts as bare
from gradcheck_cli.reproduce import places, secrets
from gradcheck_cli.reproduce.readings import WRITTEN, WRITTEN_FIRST, Rule, readings, replaced
from gradcheck_cli.reproduce.vocabulary import OWN

# Names that are nobody's; and shorter ones than this are found in paths and before an @ alone: no word would be safe.
_NOBODY = {"root", "localhost", "localdomain", "nobody", "runner", "git"}
_EVERYBODY = {"github.com", "gitlab.com", "pypi.org", "nvcr.io", "huggingface.co", "nvidia.com", "pytorch.org"}
_SHORTEST = 3
_DTYPES = {"float", "bfloat", "uint", "complex"}  # with a number behind them
_LONGEST = 4096
_MARKS = r"<(?:user|host|home|address|token|variable|folder)>"

# Fields that records and ids are read back by: their values are words of gradcheck's own, and keep any name among them.
_OWN_FIELDS = frozenset(
    [
        "event",
        "schema",
        "outcome",
        "outcomes",
        "roles",
        "role",
        "axes",
        "axis",
        "case",
        "cases",
        "slot",
        "kind",
        "asked",
        "example",
        "exceptions",
        "beside",
        "nearest",
        "terms",
        "values",
        "others",
        "failing",
        "passing",
        "always",
        "margins",
        "provider",
    ]
)
# Fields whose keys are foreign text as well; the keys of all others are fields of records, axes, roles and outcomes.
_FOREIGN_KEYS = frozenset({"versions", "variables", "options", "effective", "channels"})
_IMAGE = "NVIDIA_PYTORCH_VERSION"


class Names(NamedTuple):
    """Whose machine it is: what cannot be told from a text alone."""

    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    homes: frozenset[str] = frozenset()


def names_in(texts: Iterable[str], known: Names) -> Names:
    """The names that are known, and those that homes and `user@host` in these texts give away."""
    users, hosts = set(known.users), set(known.hosts)
    for text in (reading for one in texts for reading in readings(one)):
        for found in places.HOME.finditer(text):
            users |= {name for name in found.groupdict().values() if name}
        for pattern in (places.AT_DOTTED, places.AT_BARE, places.AT_ADDRESS):
            for found in pattern.finditer(text):
                users.add(found["user"])
                if pattern is not places.AT_ADDRESS:
                    hosts.add(found["host"])
        hosts |= set(bare.given_away(text))
    hosts |= {host.partition(".")[0] for host in hosts if host.count(".") > 1}
    return Names(_telling(users), _telling(hosts), frozenset(home for home in known.homes if len(home) > 1))


def _telling(names: set[str]) -> frozenset[str]:
    nobodys = _NOBODY | _EVERYBODY | {word.lower() for word in OWN}
    return frozenset(name for name in names if name.lower() not in nobodys)


def strings(value: Any) -> Iterator[str]:
    """Every text in a decoded JSON value, as it reads: an escaped newline before a name is no letter of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from strings(name)
            yield from strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


def cleared(text: str, names: Names) -> str:
    """A text without anything private; what stood there reads `<user>`, `<host>`, `<home>`, `<address>`, `<token>`."""
    private, mine = [*secrets.OF_A_TEXT, *_homes(names), *places.HOMES], _of(names)
    text = replaced(text, secrets.BLOCKS, (WRITTEN,))
    # A log repeats itself.
    once = functools.cache(lambda part: replaced(_of_a_form(part, private, mine), mine))
    return "".join(once(part) for part in _parts(text))


def without_marks(text: str, names: Names) -> str:
    """The same without what can be told by its form, and homes: of a text whose words must stay, a script's."""
    private = [*secrets.OF_A_SCRIPT, *_homes(names), *places.HOMES]
    return "".join(_of_a_form(part, private) for part in _parts(replaced(text, secrets.BLOCKS, (WRITTEN,))))


def _of_a_form(text: str, rules: list[Rule], names: list[Rule] | None = None) -> str:
    # A quoted value ends where its quotes do, before any escape in it is read; a place begins where an escape ends.
    text = replaced(replaced(text, rules, WRITTEN_FIRST), [*places.RULES, *bare.RULES])
    # As it is written an escape may look like a folder of Windows: with it would go what sets a name apart.
    return replaced(replaced(text, names or []), places.WINDOWS, (WRITTEN,))


def _parts(text: str) -> Iterator[str]:
    """Lines, and of a long one pieces that end with a blank: a line without an end must not take as long."""
    for line in text.splitlines(keepends=True):
        while len(line) > _LONGEST:
            end = line.rfind(" ", _LONGEST // 2, _LONGEST) + 1 or _LONGEST
            yield line[:end]
            line = line[end:]
        yield line


def _homes(names: Names) -> list[Rule]:
    homes = sorted(names.homes, key=len, reverse=True)
    return [Rule(re.compile(rf"{re.escape(home)}(?![\w-])"), "<home>") for home in homes]


def _of(names: Names) -> list[Rule]:
    """Names wherever they stand alone: an underscore is a boundary too, gpu7_alice is as telling as alice."""
    rules = []
    for mark, group, form in (("<host>", names.hosts, _any_of_its_kind), ("<user>", names.users, _and_glued)):
        telling = sorted((name for name in _telling(set(group)) if len(name) >= _SHORTEST), key=len, reverse=True)
        if telling:
            pattern = rf"{_MARKS}|(?P<it>{'|'.join(map(form, telling))})"
            rules.append(Rule(re.compile(pattern, re.IGNORECASE), mark))
    return rules


def _any_of_its_kind(host: str) -> str:
    """A host by its name, and those that are numbered as it is: gpu-node-17 has neighbours, and may be GPU_NODE_17."""
    numbered = re.fullmatch(r"(?P<stem>.*\D)(?P<number>\d+)", host)
    body = re.escape(host)
    if numbered and len(numbered["stem"]) >= _SHORTEST:
        body = re.escape(numbered["stem"]).replace(r"\-", "[-_]?") + rf"\d{{{len(numbered['number'])},}}"
    return rf"(?<![^\W_]){body}(?![^\W_])"


def _and_glued(user: str) -> str:
    """A user by name; a longer one also where a number is glued to it, or a word that a capital letter sets apart."""
    if len(user) <= _SHORTEST or user.lower() in _DTYPES:
        return rf"(?<![^\W_]){re.escape(user)}(?![^\W_])"
    capital = r"(?-i:(?<=[a-z])(?=[A-Z]))"
    return rf"(?:(?<![^\W\d_])|{capital}){re.escape(user)}\d*(?:(?![^\W_])|{capital})"


def cleared_json(value: Any, names: Names, key: str = "") -> Any:
    """A decoded JSON value without anything private: variables that may not be told are gone, texts are cleared.

    Ids, axes and outcomes keep their words, so that the records can still be read.
    """
    if isinstance(value, str):
        return without_marks(value, names) if key in _OWN_FIELDS else _text(value, names, key)
    if isinstance(value, list):
        return [cleared_json(one, names, key) for one in value]
    if isinstance(value, Mapping):
        if key in {"variables", "options"}:
            value = {name: _line(one) for name, one in value.items() if _may_be_told(name, one)}
        inner = key if key in _OWN_FIELDS or key == "versions" else ""
        return {_key(name, names, key): cleared_json(one, names, inner or name) for name, one in value.items()}
    return value


def _key(name: str, names: Names, of: str) -> str:
    if of in {"variables", "options"}:
        return name
    return cleared(name, names) if of in _FOREIGN_KEYS else without_marks(name, names)


def _may_be_told(name: str, value: Any) -> bool:
    if name == _IMAGE and not re.fullmatch(r"[\w.+-]+", str(value)):
        return False  # the name of an image, which is told as one
    return secrets.told(name) or bool(re.fullmatch(r"-[\w-]+", name))


def _line(value: Any) -> Any:
    """A variable is told in one line."""
    return " ".join(value.split()) if isinstance(value, str) else value


def _text(value: str, names: Names, key: str) -> str:
    # A field of versions holds versions, however many numbers they have; a build of one's own may name who built it.
    return (
        replaced(value, _of(names)) if key == "versions" and re.fullmatch(r"[\w.+-]+", value) else cleared(value, names)
    )
