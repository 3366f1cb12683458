"""What of a text is nobody's business? Names, homes, addresses, tokens and variables, each replaced by what it was."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# The variables that may be told: those that change what a library computes or where, and the image it came in.
TOLD = re.compile(
    r"(NVTE_|CUBLAS|NVIDIA_TF32|TORCH_ALLOW_TF32|PYTORCH_CUDA_ALLOC|GRADCHECK_)\w*"
    r"|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|NVIDIA_PYTORCH_VERSION|OMP_NUM_THREADS"
)
_TELLING = r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|auth)"
_TELLING_NAME = re.compile(_TELLING, re.IGNORECASE)
# Names that are nobody's; and shorter ones than this are found in paths and before an @ alone: no word would be safe.
_NOBODY = {"root", "localhost", "localdomain", "nobody", "runner"}
_SHORTEST = 3

# Fields that records and ids are read back by: their values are words of gradcheck's own, and keep any name among them.
_OWN_WORDS = {
    "event",
    "schema",
    "outcome",
    "roles",
    "axes",
    "case",
    "cases",
    "slot",
    "kind",
    "asked",
    "example",
    "beside",
}

_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|nvapi-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|sk-[\w-]{20,}|pypi-[\w-]{16,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|[A-Za-z0-9]{84})(?![A-Za-z0-9])"  # the last is a key of NGC: 84 letters and digits
)
_BEARER = re.compile(r"\b(Bearer|Basic) +[A-Za-z0-9._~+/=-]{8,}")
_LOGIN = re.compile(r"://[^\s/@:]*:[^\s/@]*@")
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"')\]}]+)"
_ASSIGNED = re.compile(rf"(?<![\w$-])([A-Z][A-Z0-9_]{{2,}})=({_VALUE})")
_MAPPED = re.compile(r"([\"'])([A-Z][A-Z0-9_]{2,})\1(\s*:\s*)(\"[^\"\n]*\"|'[^'\n]*')")
_SECRET = re.compile(rf"(?<![A-Za-z])((?:[\w-]*[_-])?{_TELLING}[\"']?\s*[:=]\s*)({_VALUE})", re.IGNORECASE)

_HOME = re.compile(
    r"(?:/home|/Users)/(?P<user>[^/\s:\"',;)\]}<>]+)|/root(?![\w-])|[A-Za-z]:\\+Users\\+(?P<other>[^\\\s:\"',;]+)"
)
# Where everybody has the same; the names of all other folders may say whose machine it is.
_FOLDERS = re.compile(r"(?<![\w.<>/:~*)\]-])/(?!(?:usr|opt|lib|lib64|bin|sbin|etc|proc|dev|sys)/)(?:[\w.+@%~-]+/)+")
_AT = re.compile(r"(?<![\w.+-])(?P<user>[A-Za-z_][\w.+-]*)@(?P<host>(?!v?\d)[A-Za-z][\w.-]*\w)")
_HOST = re.compile(
    r"(?<![\w.-])(?:[A-Za-z0-9-]+\.)+(?:internal|local|lan|corp|intranet|localdomain)(?![\w-])|(?<![\w-])ip(?:-\d{1,3}){4}(?!\w)"
    r"|(?<=\[)[A-Za-z][\w.-]*(?=\]:\d{2,5}\b)"
)
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)(?P<port>:\d+|/\d+)?")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?:%\w+)?(?![\w:])")
# What stands before four numbers that are a version: an operator, the word, a library's name.
_VERSION_BEFORE = re.compile(
    r"(?:[=<>~!]=\s*|\bversions?\W{0,3}|\b(?:torch|cuda|cudnn|cublas(?:lt)?|nccl|driver|python|triton|nvrtc"
    r"|transformer[_-]engine(?:[_-]\w+)?|gradcheck|nvidia[\w-]*)\b\W{0,4}|\b(?:nvidia|cuda|lib|torch|transformer)\w*-)$",
    re.IGNORECASE,
)


class Names(NamedTuple):
    """Whose machine it is: what cannot be told from a text alone."""

    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    homes: frozenset[str] = frozenset()


def names_in(texts: Iterable[str], known: Names) -> Names:
    """The names that are known, and those that homes and `user@host` in these texts give away."""
    users, hosts = set(known.users), set(known.hosts)
    for text in texts:
        users |= {found["user"] or found["other"] for found in _HOME.finditer(text) if found["user"] or found["other"]}
        for found in _AT.finditer(text):
            users.add(found["user"])
            hosts.add(found["host"])
    hosts |= {host.partition(".")[0] for host in hosts}
    return Names(_telling(users), _telling(hosts), frozenset(home for home in known.homes if len(home) > 1))


def _telling(names: set[str]) -> frozenset[str]:
    return frozenset(name for name in names if name.lower() not in _NOBODY)


def strings(value: Any) -> Iterator[str]:
    """Every text in a decoded JSON value, as it reads: an escaped newline before a name is no letter of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


def cleared(text: str, names: Names) -> str:
    """A text without anything private; what stood there reads `<user>`, `<host>`, `<home>`, `<address>`, `<token>`."""
    return _without_names(without_marks(text, names), names)


def without_marks(text: str, names: Names) -> str:
    """The same without what can be told by its form, and homes: of a text whose words must stay, a script's."""
    text = _KEY_BLOCK.sub("<token>", text)
    text = _TOKEN.sub("<token>", text)
    text = _BEARER.sub(r"\1 <token>", text)
    text = _LOGIN.sub("://<user>:<token>@", text)
    text = _ASSIGNED.sub(_variable, text)
    text = _MAPPED.sub(_mapped, text)
    text = _SECRET.sub(r"\1<token>", text)
    for home in sorted(names.homes, key=len, reverse=True):
        text = re.sub(rf"{re.escape(home)}(?![\w-])", "<home>", text)
    text = _HOME.sub("<home>", text)
    text = _FOLDERS.sub("<folder>/", text)
    text = _AT.sub("<user>@<host>", text)
    text = _HOST.sub("<host>", text)
    text = _MAC.sub("<address>", text)
    text = _IPV4.sub(_address, text)
    return _IPV6.sub(_long_address, text)


def _without_names(text: str, names: Names) -> str:
    for mark, group in (("<host>", names.hosts), ("<user>", names.users)):
        for name in sorted((one for one in group if len(one) >= _SHORTEST), key=len, reverse=True):
            # An underscore is a boundary too: gpu7_alice is as telling as alice.
            text = re.sub(rf"(?<![A-Za-z0-9<]){re.escape(name)}(?![A-Za-z0-9>])", mark, text, flags=re.IGNORECASE)
    return text


def _variable(found: re.Match[str]) -> str:
    return found.group() if told(found[1]) else f"{found[1]}=<variable>"


def _mapped(found: re.Match[str]) -> str:
    quote = found[1]
    return found.group() if told(found[2]) else f"{quote}{found[2]}{quote}{found[3]}{quote}<variable>{quote}"


def told(variable: str) -> bool:
    """Whether a variable may be told with its value."""
    return bool(TOLD.fullmatch(variable)) and not _TELLING_NAME.search(variable)


def _address(found: re.Match[str]) -> str:
    text = found.group()
    numbers = text.removesuffix(found["port"] or "").split(".")
    is_version = not found["port"] and _VERSION_BEFORE.search(found.string[max(0, found.start() - 60) : found.start()])
    if is_version or any(int(number) > 255 for number in numbers):
        return text
    return f"<address>{found['port'] or ''}"


def _long_address(found: re.Match[str]) -> str:
    text = found.group()
    bare = text.rstrip(".").partition("%")[0]
    try:
        ipaddress.IPv6Address(bare)
    except ValueError:
        return text
    # `::` and the namespace c10:: of torch are C++.
    return text if bare == "::" or bare.startswith("c10::") else "<address>"


def cleared_json(value: Any, names: Names, key: str = "") -> Any:
    """A decoded JSON value without anything private: variables that may not be told are gone, texts are cleared.

    Ids, axes and outcomes keep their words, so that the records can still be read.
    """
    if isinstance(value, str):
        return without_marks(value, names) if key in _OWN_WORDS else _text(value, names, key)
    if isinstance(value, list):
        return [cleared_json(one, names, key) for one in value]
    if isinstance(value, Mapping):
        if key in ("variables", "options"):
            value = {name: one for name, one in value.items() if told(name) or name.startswith("-")}
        inner = key if key in _OWN_WORDS or key == "versions" else ""
        return {name: cleared_json(one, names, inner or name) for name, one in value.items()}
    return value


def _text(value: str, names: Names, key: str) -> str:
    # A field of versions holds versions, however many numbers they have.
    return value if key == "versions" and re.fullmatch(r"[\w.+-]+", value) else cleared(value, names)
