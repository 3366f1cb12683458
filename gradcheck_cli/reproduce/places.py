"""Where is it, and whose? Homes, folders, hosts and addresses, told by their form."""

from __future__ import annotations

import ipaddress
import re

from gradcheck_cli.reproduce.readings import Rule
from gradcheck_cli.reproduce.vocabulary import OWN

_NAMES = r"[^/\\\s:\"',;)\]}<>]+(?: [A-Z][^/\\\s:\"',;)\]}<>]*(?=[/\\]))*"
HOME = re.compile(
    rf"(?i:/home)/(?P<user>[^/\\\s:\"',;)\]}}<>]+)|(?:/Users|/net/users)/(?P<mac>{_NAMES})|/root(?![\w-])"
    rf"|[A-Za-z]:\\+Users\\+(?P<other>{_NAMES})|(?<![\w/~])~(?P<short>[A-Za-z][\w.-]*)(?=/)"
)
# Where everybody has the same; the names of all other folders may say whose machine it is.
_STANDARD = (
    r"(?:usr/(?:lib\w*|bin|sbin|include|share|src|local/(?:cuda[\w.-]*|lib\w*|bin|include|share|nvidia|mpi|src))"
    r"|opt/(?:venv|conda|mini(?:conda|forge)\w*|nvidia|hpcx|amazon|python[\w.]*|pytorch|rocm[\w.-]*)"
    r"|lib\w*|bin|sbin|etc/(?:ld\.so[\w.]*|alternatives|passwd|hosts|resolv\.conf|os-release|pip\.conf)|proc|dev|sys)"
    r"(?![\w.-])"
)
_WINDOWS = r"[^\\/\s:\"'*?<>|,;]+"
_PART = r"[\w.+@%~-]+"
_LAST = r"[\w+@%~-](?:[\w.+@%~-]*[\w+@%~-])?"
# What a library holds is known to everybody: its own folders stay.
_PACKAGES = r"(?:(?:site|dist)-packages|transformer_engine|gradcheck_cli)"
_BEFORE = r"(?:(?<!:/)(?<![\w.>/~*)\]-])|(?<=-I)|(?<=-L)|(?<=file://))"
_KEPT = re.compile(rf".*\.[A-Za-z]\w{{0,7}}(?:\.\d+)*|{_PACKAGES}|python[\d.]*|torchrun|gradcheck|pytest|bash|sh")

# A host with a dot ends in letters that no version and no attribute of a tensor has.
_DOTTED = r"(?!v?\d+\.\d)[\w-]+(?:\.[\w-]+)*\.(?!(?:mT|mH|dev|post|rc)\b)[A-Za-z][A-Za-z-]+(?![\w(]|\.\w)"
_FOUR = r"\d{1,3}(?:\.\d{1,3}){3}"
_USER = r"(?<![\w.+@-])(?P<user>\w[\w.+-]*)"
AT_DOTTED = re.compile(rf"{_USER}@(?P<host>{_DOTTED})")
AT_ADDRESS = re.compile(rf"{_USER}@(?P<host>{_FOUR})(?![\w.])")
# Without a dot it may be a product of matrices, a revision or a symbol: a number or a hyphen in it, or ssh before it.
AT_BARE = re.compile(
    r"(?:(?<=ssh )|(?<=scp )|(?<=sftp )|(?<=rsync )"
    r"|(?<![\w.+@-])(?=\w[\w.+-]*@(?:[A-Za-z]\w*-[\w-]*\d|[A-Za-z]{2,}\d+\b|[\w-]+:[~/])))"
    r"(?P<user>\w[\w.+-]*)@(?P<host>[A-Za-z][\w-]*)(?![\w(.])"
)
_AT_ANY = re.compile(rf"{_USER}@(?P<host>[A-Za-z][\w-]*)(?![\w(.@])")
_REVISIONS = {"main", "master", "stable", "latest", "head", "dev", "nightly", "release"}

_SHARED = ipaddress.IPv4Network("100.64.0.0/10")  # of providers, RFC 6598

_HOST = re.compile(
    r"(?<![\w.-])(?:[A-Za-z0-9-]+\.)+(?:(?:corp|intranet|intra)(?:\.[A-Za-z0-9-]+)+|internal|local|lan|corp|intranet"
    r"|localdomain)(?![\w-])|(?<![\w-])ip(?:-\d{1,3}){4}(?!\w)"
)
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])")
_IPV4 = re.compile(rf"(?<![A-Za-z0-9.])(?P<it>{_FOUR})(?!\d|\.\d)(?P<port>:\d+|/\d+)?")
_IPV6 = re.compile(
    r"(?<![\w:.])(?P<it>[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:(?:[0-9A-Fa-f:]*(?:\d{1,3}(?:\.\d{1,3}){3})?)(?:%\w+)?)(?!\w)"
)
# What stands before four numbers that are a version: an operator, the word, a library's name.
_VERSION = r"\bversions?\W{0,3}"
_VERSION_BEFORE = re.compile(
    rf"(?:[=<>~!]=\s*|{_VERSION}|\b(?:torch|cuda|cudnn|cublas(?:lt)?|nccl|driver|python|triton|nvrtc"
    r"|transformer[_-]engine(?:[_-]\w+)?|gradcheck|nvidia[\w-]*)\b\W{0,4}|\b(?:nvidia|cuda|lib|torch|transformer)\w*-)$",
    re.IGNORECASE,
)
# Libraries whose versions begin as the addresses of networks within do: cuRAND is at 10.
_TEN_BEFORE = re.compile(
    rf"(?:{_VERSION}|\b(?:nvidia[_-])?(?:cu(?:rand|fft|solver|sparse|blas|blaslt)|npp)(?:[_-]cu\d+)?\b\W{{0,4}}"
    r"|\blib\w+\.so\.|\b(?:nvidia|lib)[_-]?cu\w+-)$",
    re.IGNORECASE,
)
_HOST_BEFORE = re.compile(r"\b(?:host|peer|addr(?:ess)?|ip|server|node|master|endpoint)\w*\s*[=!]=\s*$", re.IGNORECASE)


def _folder(found: re.Match[str]) -> str:
    last = found["last"] or ""
    if not last:
        return "<folder>/"
    return f"<folder>/{last}" if _KEPT.fullmatch(last) else "<folder>"


def _mail(found: re.Match[str]) -> str | None:
    host = found["host"].lower()
    if host in _REVISIONS or {found["user"], found["host"]} & OWN or min(len(found["user"]), len(host)) < 3:
        return None
    return "<user>@<host>"


def _at_address(found: re.Match[str]) -> str | None:
    return "<user>@<address>" if _is_address(found["host"], f"{found['user']} ") else None


def _is_address(numbers: str, before: str) -> bool:
    within = _within(numbers)
    if within is None:
        return False
    if within:
        return not _TEN_BEFORE.search(before)
    return bool(_HOST_BEFORE.search(before)) or not _VERSION_BEFORE.search(before)


def _within(numbers: str) -> bool | None:
    """Whether it is an address of a network within; None where it is no address."""
    try:
        address = ipaddress.IPv4Address(".".join(str(int(number)) for number in numbers.split(".")))
    except ValueError:
        return None
    return address.is_private or address in _SHARED


def _address(found: re.Match[str]) -> str | None:
    text, start, end = found.string, found.start("it"), found.end("it")
    if found["port"]:
        return None if _within(found["it"]) is None else "<address>"
    # Glued to a word it may be part of a file's name.
    glued = text[start - 1 : start] == "_" or re.match(r"[A-Za-z_]", text[end : end + 1])
    if glued and not _within(found["it"]):
        return None
    return "<address>" if _is_address(found["it"], text[max(0, start - 60) : start]) else None


def _long_address(found: re.Match[str]) -> str | None:
    # What ends a sentence is no part of it; `::` and the namespace c10:: of torch are C++.
    text = found["it"]
    for end in ("", ".", ":", ".:"):
        bare = text.rstrip(end) if end else text
        one = bare.partition("%")[0]
        if one in {"", "::"} or one.startswith("c10::"):
            continue
        try:
            ipaddress.IPv6Address(one)
        except ValueError:
            continue
        return f"<address>{text[len(bare) :]}"
    return None


HOMES = [Rule(HOME, "<home>")]
RULES = [
    Rule(re.compile(rf"{_BEFORE}/(?!{_STANDARD})(?:(?!{_PACKAGES}/){_PART}/)+(?P<last>{_LAST})?"), _folder),
    Rule(re.compile(rf"(?<![^\s\"'=:(,\[])/(?!{_STANDARD})[A-Za-z][\w-]{{2,}}(?![\w./-])"), "<folder>"),
    Rule(AT_DOTTED, "<user>@<host>"),
    Rule(AT_ADDRESS, _at_address),
    Rule(AT_BARE, _mail),
    Rule(_AT_ANY, _mail),
    Rule(_HOST, "<host>"),
    Rule(_MAC, "<address>"),
    Rule(_IPV4, _address),
    Rule(_IPV6, _long_address),
]
# Of Windows: what stands after a backslash there is no escape.
WINDOWS = [
    Rule(
        re.compile(
            rf"(?<![A-Za-z0-9])[A-Za-z]:\\+"
            rf"(?:(?:{_WINDOWS}\\+)*{_WINDOWS}(?=\\+[^\\\s]*\.\w)|(?:{_WINDOWS}\\+)*{_WINDOWS})"
        ),
        "<folder>",
    ),
    Rule(re.compile(r"(?<![^\s\"'=(,])(?:\\\\[\w.-]+(?:\\[\w.$-]+)+|\\{4}[\w.-]+(?:\\\\[\w.$-]+)+)"), "<folder>"),
]
