"""Which cases does a `-k` expression select?

| rule | is |
|---|---|
| either | both ("or" both)* |
| both | negated ("and" negated)* |
| negated | "not"* ("(" either ")" or comparison) |
| comparison | axis: alone, where its values are 0 and 1 |
| | axis ("=" "==" "!=") value |
| | axis ("<" "<=" ">" ">=") value: where its values are numbers |
| | axis "not"? "in" "(" value ("," value)* ")" |
| value | word, or quoted text, or after m_splits= also 64,0,128 |
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import msgspec

from gradcheck_cli import plugins
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.case import ALIASES, AXES, Case
from gradcheck_cli.records.excerpt import shortened

Predicate = Callable[[Case], bool]

_EQUALITIES: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = _EQUALITIES | _ORDERINGS
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Case)}
_KEYWORDS = ("and", "or", "not", "in")
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[\w.+-]+)
        |(?P<quoted>"[^"]*"|'[^']*')
        |(?P<sign>==|!=|<=|>=|[=<>(),])
        |(?P<end>$)
        |(?P<stray>.))""",
    re.VERBOSE,
)
# Keeps the recursive descent, and the predicate it builds, far from the interpreter's own limit.
_DEEPEST = 50
_SHOWN = 200  # of the source, before and behind the place that a message is about


def compile_expression(text: str) -> Predicate:
    """The test that `text` puts to a case; UsageError points at the place where the text is not understood."""
    return _Parser(text).parse()


def axes_named(text: str) -> tuple[str, ...]:
    """The axes that an expression speaks of: no other changes what it says of a case."""
    words = [ALIASES.get(token.text, token.text) for token in _tokens(text)]
    return tuple(dict.fromkeys(word for word in words if word in AXES))


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def _tokens(source: str) -> list[_Token]:
    # One alternative matches at every position, so that nothing of the source is passed over.
    found = [(match, str(match.lastgroup)) for match in _TOKEN.finditer(source)]
    return [_Token(kind, match[kind], match.start(kind)) for match, kind in found]


class _Parser:
    """Recursive descent over the tokens of one expression, one method a rule of the grammar."""

    def __init__(self, source: str) -> None:
        self._source = re.sub(r"\s", " ", source).rstrip()
        self._tokens = _tokens(self._source)
        self._next = 0
        self._depth = 0

    def parse(self) -> Predicate:
        """The whole expression, with nothing left over."""
        predicate = self._either()
        if self._token.text == ",":
            self._fail("`and`, `or` or the end; several values of one axis are written dtype in (bf16, fp16)")
        if self._token.kind != "end":
            self._fail("`and`, `or` or the end")
        return predicate

    def _either(self) -> Predicate:
        terms = [self._both()]
        while self._accept("or"):
            terms.append(self._both())
        return terms[0] if len(terms) == 1 else lambda case: any(term(case) for term in terms)

    def _both(self) -> Predicate:
        terms = [self._negated()]
        while self._accept("and"):
            terms.append(self._negated())
        return terms[0] if len(terms) == 1 else lambda case: all(term(case) for term in terms)

    def _negated(self) -> Predicate:
        negations = 0
        while self._accept("not"):
            negations += 1
        term = self._enclosed() if self._token.text == "(" else self._comparison()
        return (lambda case: not term(case)) if negations % 2 else term

    def _enclosed(self) -> Predicate:
        if self._depth == _DEEPEST:
            self._fail(f"at most {_DEEPEST} parentheses inside each other")
        self._take()
        self._depth += 1
        inner = self._either()
        self._depth -= 1
        self._expect(")", "`and`, `or` or `)`")
        return inner

    def _comparison(self) -> Predicate:
        axis = self._axis()
        name = ALIASES.get(axis.text, axis.text)
        if self._token.text in _OPERATORS:
            return self._compared(name)
        if self._accept("in"):
            return self._listed(name)
        if self._accept("not"):
            self._expect("in", f"`in`, as in {name} not in (...)")
            listed = self._listed(name)
            return lambda case: not listed(case)
        if not isinstance(_DEFAULTS[name], bool):
            operators = "= != < <= > >= in" if _ordered(name) else "= != in"
            self._fail(f"an operator ({operators}) after {name}, which is not 0 or 1")
        return lambda case: bool(getattr(case, name))

    def _axis(self) -> _Token:
        token = self._token
        if token.kind != "word" or token.text in _KEYWORDS:
            self._fail("an axis, `not` or `(`", known=True)
        if ALIASES.get(token.text, token.text) not in AXES:
            self._fail("an axis", known=True)
        return self._take()

    def _compared(self, name: str) -> Predicate:
        if self._token.text in _ORDERINGS and not _ordered(name):
            self._fail(f"= or != or in: the values of {name} have no order")
        compare = _OPERATORS[self._take().text]
        token = self._value(name)
        text = token.text
        while name == "m_splits" and token.kind == "word" and self._accept(","):
            text += f",{self._value(name).text}"
        value = self._typed(name, token, text)
        return lambda case: compare(getattr(case, name), value)

    def _listed(self, name: str) -> Predicate:
        self._expect("(", f"the values of {name} in parentheses, as in dtype in (bf16, fp16)")
        values = [self._item(name)]
        while self._accept(","):
            values.append(self._item(name))
        self._expect(")", "`,` or `)`")
        return lambda case: getattr(case, name) in values

    def _item(self, name: str) -> Any:
        # In parentheses a comma separates values, so that the commas of a list of splits need quotes.
        if name == "m_splits" and self._token.kind == "word" and self._token.text.isdigit():
            self._fail('a named pattern, or a list of splits in quotes, such as "64,0,128"')
        token = self._value(name)
        return self._typed(name, token, token.text)

    def _value(self, name: str) -> _Token:
        if self._token.kind not in ("word", "quoted") or self._token.text in _KEYWORDS:
            self._fail(f"a value of {name}: {plugins.allowed_values(name)}")
        return self._take()

    def _typed(self, name: str, token: _Token, text: str) -> Any:
        try:
            return plugins.axis_value(name, text.strip("\"'"))
        except ValueError as error:
            raise self._error(str(error), token.at) from None

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._token.kind == "quoted" or self._token.text != text:
            return False
        self._take()
        return True

    def _expect(self, text: str, what: str) -> None:
        if not self._accept(text):
            self._fail(what)

    def _fail(self, expected: str, *, known: bool = False) -> NoReturn:
        found = shortened(repr(self._token.text)) if self._token.text else "the end"
        axes = f"; the axes are: {', '.join((*AXES, *ALIASES))}" if known else ""
        raise self._error(f"expected {expected}, found {found}{axes}", self._token.at)

    def _error(self, why: str, at: int) -> UsageError:
        begin = max(0, at - _SHOWN)
        head, tail = "... " * (begin > 0), " ..." * (at + _SHOWN < len(self._source))
        line = f"{head}{self._source[begin : at + _SHOWN]}{tail}"
        return UsageError(f"-k: {why}\n    {line}\n    {' ' * (len(head) + at - begin)}^")


def _ordered(name: str) -> bool:
    return type(_DEFAULTS[name]) is int
