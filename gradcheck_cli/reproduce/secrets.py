"""What is a secret, or a variable with its value? Told by its form, or by the name that it is given.

The forms of tokens are those that their makers publish, as the rules of gitleaks list them
(https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml), a little wider.
"""

from __future__ import annotations

import re

from gradcheck_cli.reproduce.readings import Rule
from gradcheck_cli.reproduce.vocabulary import OWN

# The variables that may be told: those that change what a library computes or where, what torch advises to set, and the
# image it came in.
TOLD = re.compile(
    r"(NVTE_|CUBLAS|NVIDIA_TF32|TORCH_ALLOW_TF32|PYTORCH_(CUDA_)?ALLOC|GRADCHECK_)\w*"
    r"|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|NVIDIA_PYTORCH_VERSION|OMP_NUM_THREADS"
    r"|TORCH_USE_CUDA_DSA|TORCH_LOGS|TORCHDYNAMO_VERBOSE|TORCH_CUDA_ARCH_LIST|NCCL_DEBUG"
)
_TELLING = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|auth"
    r"|(?<!ward)(?<!wd)[_-]pass|(?<![A-Za-z])(?-i:pwd))"
)
_TELLING_NAME = re.compile(_TELLING, re.IGNORECASE)
_DONE = r"(?!\s*[\"']?<(?:variable|token)>)"
_QUOTED = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_INSIDE = rf"(?P<q>[\"']){_DONE}(?P<it>(?:\\.|(?!(?P=q))[^\\\n])+)(?P=q)"
_VALUE = rf"(?:{_QUOTED}|[^\s,;&\"')\]}}]+)"
_NEXT = r"[A-Za-z_]\w*="
_COMMAND = r"(?:python[\d.]*|torchrun|gradcheck|pytest|srun|mpirun|bash|sh|make|nsys)\b"
_SENTENCE = r"(?:is|was|are|for|to|in|on|at|and|or|not|with|from|of|failed|has|must|cannot|before|after)\b"
_UNQUOTED = (
    rf"[^\s\"'`]+?(?=[)\]}}>,;.:]*(?:[\s\"'`]|\Z)|[,;&]{_NEXT})"
    # A title of several words: as far as it is no sentence, no option and no command.
    rf"(?:(?<=[A-Za-z])(?: (?!{_NEXT}|{_COMMAND}|{_SENTENCE})\w[\w./-]*)+)?"
)
_ANY = rf"(?:{_QUOTED}|\{{[^\n]*\}}|\[[^\n]*\]|\([^\n]*\)|{_UNQUOTED})"
_HARMLESS = re.compile(
    r"[\d.e+-]+|true|false|none|null|yes|no|on|off|nan|-?inf|localhost|cpu|cuda(?::\d+)?|<\w+>.*"
    r"|(?:torch\.)?(?:bf|fp|b?float|u?int|tf)\d+\w*|.*[(\[{].*",
    re.IGNORECASE,
)
# Upper case names that a library starts its messages with.
_MESSAGE = re.compile(r"ERROR|WARN|STATUS|EXCEPTION|FAIL|INVALID|NOT_")
_PLACES = (
    r"\w{0,30}_proxy|proxy|(?:\w{1,30}_)?(?:(?:host|user|node|computer|machine|log)_?name|job_?(?:name|title|id)|project|account"
    r"|cluster|tenant|team|organi[sz]ation|owner|email)|host|user|login|node"
)
_SCHEME = r"(?:bearer|basic|token|digest|negotiate|apikey|key)\s+"


def told(variable: str) -> bool:
    """Whether a variable may be told with its value."""
    return bool(TOLD.fullmatch(variable)) and not _TELLING_NAME.search(variable)


def _variable(found: re.Match[str]) -> str | None:
    name, value = found["name"], found["it"]
    few = len(name) == 2 and _HARMLESS.fullmatch(value)  # TP=2, and the sizes of a block
    if told(name) or few or name in OWN:
        return None
    return "<token>" if _TELLING_NAME.search(name) else "<variable>"


def _dumped(found: re.Match[str]) -> str | None:
    name, value = found["name"], found["it"]
    if not name[:2].isupper():
        return None if name in OWN or " " in value.strip() or _HARMLESS.fullmatch(value) else "<variable>"
    return _variable(found)


def _stated(found: re.Match[str]) -> str | None:
    return None if _MESSAGE.search(found["name"]) else _variable(found)


def _placed(found: re.Match[str]) -> str | None:
    return None if _HARMLESS.fullmatch(found["it"]) else "<variable>"


def _secret(found: re.Match[str]) -> str | None:
    # A token of a batch has a number.
    return None if re.fullmatch(r"\d{1,6}", found["it"]) and found["name"].lower() == "token" else "<token>"


_ITS_NAME = rf"(?:[A-Z][A-Z0-9_]+|(?i:\w*{_TELLING}))"
# What has several lines: a key; a value in quotes, one that goes on after a backslash, a block of YAML, a function of a
# shell, and a secret in the line below its name.
BLOCKS = [
    Rule(
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        "<token>",
    ),
    Rule(
        re.compile(
            rf"(?<![A-Za-z0-9_])(?P<name>{_ITS_NAME})=(?P<it>(?P<q>[\"'])[^\"'\n]*\n[^\"']*(?P=q))(?=[\s,;)]|\Z)"
        ),
        _stated,
    ),
    Rule(
        re.compile(rf"(?<![A-Za-z0-9_])(?P<name>{_ITS_NAME})=(?P<it>[^\s\"'\\]+(?:\\\n[^\s\"'\\]+)+)"),
        _stated,
    ),
    Rule(
        re.compile(
            rf"^(?P<in>[ \t]*)(?:- +)?[\"']?(?P<name>{_ITS_NAME})[\"']?[ \t]*:[ \t]*"
            r"(?P<it>[|>][+-]?\d?[ \t]*\n(?P<block>(?P=in)[ \t]+)[^\n]*(?:\n(?:(?P=block)[^\n]*|[ \t]*(?=\n)))*)",
            re.MULTILINE,
        ),
        _stated,
    ),
    Rule(
        re.compile(r"^(?P<name>BASH_FUNC_\w+)(?:%%|\(\))=(?P<it>\(\) *\{(?:(?!BASH_FUNC_)[^\n]*\n)+?\})", re.MULTILINE),
        "<variable>",
    ),
    Rule(
        re.compile(
            rf"(?i)(?P<name>{_TELLING})[\"']?[ \t]*[:=][ \t]*\n[ \t]+"
            r"(?P<it>(?=\S*\d)(?=\S*[A-Z])[\w./+=~-]{8,})[ \t]*$",
            re.MULTILINE,
        ),
        "<token>",
    ),
]
_KEYS = [
    Rule(
        re.compile(
            r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{20,}|gl(?:pat|dt|rt|ptt|cbt|ft|soat)-[\w-]{16,}"
            r"|hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA|ABIA|ACCA|AIDA|AROA)[A-Z0-9]{16}|nvapi-[\w-]{16,}"
            r"|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}|sk-[\w-]{20,}|[sr]k_(?:live|test|prod)_[A-Za-z0-9]{10,}"
            r"|pypi-[\w-]{16,}|npm_[A-Za-z0-9]{16,}|dckr_[po]at_[\w-]{16,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
            r"|SG\.[\w-]{16,}\.[\w-]{16,}|hv[sb]\.[\w-]{20,}|do[opr]_v1_[0-9a-f]{32,}|ssh-(?:rsa|ed25519) [\w+/=]{20,}"
            r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
            r"|[A-Za-z0-9]{84})(?![A-Za-z0-9])"  # the last is a key of NGC: 84 letters and digits
        ),
        "<token>",
    ),
    Rule(re.compile(r"hooks\.slack\.com/(?P<it>(?:services|workflows)/[\w/-]+)"), "<token>"),
    Rule(re.compile(r"discord(?:app)?\.com/api/(?P<it>webhooks/[\w/-]+)"), "<token>"),
    Rule(re.compile(r"[?&](?:sig|signature|X-Amz-\w+|key|code)=(?P<it>[^\s&\"'<>]+)", re.IGNORECASE), "<token>"),
    Rule(
        re.compile(rf"(?i)authorization[\"']?\s*[:=]\s*[\"']?(?:{_SCHEME})?(?!{_SCHEME}){_DONE}(?P<it>[^\s\"',]+)"),
        "<token>",
    ),
    Rule(re.compile(r"\b(?:[Bb]earer|Basic) +(?P<it>[A-Za-z0-9._~+/=-]{8,})"), "<token>"),
    Rule(re.compile(rf"(?i)\b(?:set-)?cookie[\"']?\s*[:=]\s*[\"']?{_DONE}(?P<it>[^\n\"']+)"), "<token>"),
    # The name and the password of an address, whatever the password holds; without one it is a name or a token.
    Rule(re.compile(r"://(?P<it>[^\s/@:\"'<>]*:[^\s\"'<>]*@)"), "<user>:<token>@"),
]
_NAMED = [
    Rule(re.compile(rf"(?i)(?P<name>{_TELLING})[\"']?\s*[:=]\s*(?!=){_DONE}(?P<it>{_VALUE})"), _secret),
    Rule(
        re.compile(
            rf"(?i)(?<![\w-])--?[\w-]{{0,30}}?(?P<name>{_TELLING})[\"']?(?:\s*,\s*|\s+)[\"']?(?!-){_DONE}(?P<it>[^\s\"',]+)"
        ),
        _secret,
    ),
    Rule(re.compile(rf"(?i)\b(?:password|passphrase|passwd)\s+(?:is|was)\s+{_DONE}(?P<it>\S+)"), "<token>"),
]
_ASSIGNED = [
    Rule(re.compile(rf"(?:(?<![A-Za-z0-9_])|(?<=-e))(?P<name>[A-Z][A-Z0-9_]+)=(?!=){_DONE}(?P<it>{_ANY})"), _variable),
    Rule(re.compile(rf"(?P<n>[\"'])(?P<name>[A-Z][A-Z0-9_]+)(?P=n)\s*[:=]\s*{_INSIDE}"), _variable),
    Rule(re.compile(rf"\((?P<n>[\"'])(?P<name>[A-Z][A-Z0-9_]+)(?P=n),\s*{_INSIDE}\)"), _variable),
    Rule(re.compile(rf"(?i)(?<![A-Za-z0-9])(?P<name>{_PLACES})=(?!=){_DONE}(?P<it>{_VALUE})"), _placed),
    Rule(
        re.compile(rf"(?i)\b(?P<name>(?:host|user|node|computer|machine) ?_?name)[\"']?:\s*{_DONE}(?P<it>{_VALUE})"),
        _placed,
    ),
]
# Of a line of its own: what the commands env, export and a file of settings write.
_LINES = [
    Rule(
        re.compile(
            rf"^(?:export +|declare +-\w+ +|-e +|env +)?(?P<name>[A-Za-z_]\w+)=(?!=){_DONE}"
            rf"(?P<it>{_QUOTED}|(?![\"'])(?:(?!\s+(?:{_NEXT}|{_COMMAND}))[^\n])+)",
            re.MULTILINE,
        ),
        _dumped,
    ),
    Rule(
        re.compile(
            rf"(?:^|[,{{;])[ \t]*(?:- +)?(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]*)(?:[ \t]*:[ \t]+|[ \t]+=[ \t]+)"
            rf"{_DONE}(?P<it>[^\n]+)",
            re.MULTILINE,
        ),
        _stated,
    ),
]

# Of a text whose words must stay as they are, a script's: its own names are no variables of a shell.
OF_A_SCRIPT = [*_KEYS, *_ASSIGNED[:3], *_NAMED]
OF_A_TEXT = [*_KEYS, *_LINES, *_ASSIGNED, *_NAMED]
