"""Does `full` hold every pair of axis values that may stand together, and is its cover the one of its values?"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from gradcheck_cli import cover, matrix, plugins
from gradcheck_cli.constraints import CONSTRAINTS
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.case import Case

FULL = Path(__file__).parent.parent / "cases" / "full.toml"
BLOCK = matrix.covered(matrix.load("full"))
VALUES = {axis.name: list(axis.values) for axis in BLOCK.axes}
LAYERS = cover.layers()


def of_layer(provider: str, api: str) -> list[Case]:
    return [case for case in BLOCK.listed if (case.provider, case.api) == (provider, api)]


@pytest.mark.parametrize(("provider", "api"), LAYERS, ids=[f"{provider}-{api}" for provider, api in LAYERS])
def test_every_case_of_the_cover_has_values_of_the_matrix_and_may_be_asked(provider: str, api: str) -> None:
    cases = of_layer(provider, api)
    assert 50 < len(cases) == len(set(cases)) < 100
    assert [matrix.excluded(case) for case in cases] == [None] * len(cases)
    assert [name for name, own in VALUES.items() for case in cases if getattr(case, name) not in own] == []


@pytest.mark.parametrize(("provider", "api"), LAYERS, ids=[f"{provider}-{api}" for provider, api in LAYERS])
def test_every_pair_that_some_case_may_have_stands_in_the_cover(provider: str, api: str) -> None:
    covered = cover.combinations(of_layer(provider, api), 2)
    drawn = random.Random(0)  # noqa: S311  no secret
    for _ in range(400):  # what may stand together is not told by the pair alone: cases that may be asked tell it
        case = Case(provider=provider, api=api, **{name: drawn.choice(own) for name, own in VALUES.items()})
        if matrix.excluded(case) is None:
            assert cover.combinations([case], 2) - covered == set()
    for names in itertools.combinations(VALUES, 2):
        for pair in itertools.product(*(VALUES[name] for name in names)):
            own = {"num_gemms": 8, "bias": True, **dict(zip(names, pair, strict=True))}
            case = Case(provider=provider, api=api, **own)
            axes = case.axes()
            if matrix.excluded(case) is None:
                assert tuple((name, axes[name]) for name in axes if name in names) in covered


def test_the_cover_of_one_layer_is_what_its_values_lead_to() -> None:
    generated = list(cover.cover("torch", "loop", VALUES, BLOCK.cover))
    assert generated == of_layer("torch", "loop"), "run `python -m gradcheck_cli.cover cases/full.toml`"


def test_a_layer_that_the_cover_does_not_know_gets_the_cases_of_a_plain_one() -> None:
    plain = of_layer(*LAYERS[-1])
    found = matrix.enumerate_cases(matrix.load("full"), [plugins.candidate("faults")], 0)
    own = [case for case in found if isinstance(case, Case) and case.api == "wgrad_doubled"]
    assert [case.axes() | {"provider": "", "api": ""} for case in own[: len(plain)]] == [
        case.axes() | {"provider": "", "api": ""} for case in plain
    ]


def test_a_group_of_axes_is_enough_to_be_rejected_for() -> None:
    drawn = random.Random(1)  # noqa: S311  no secret
    for _ in range(3000):
        provider, api = drawn.choice(LAYERS)
        axes = {name: drawn.choice(own) for name, own in VALUES.items()}
        case = Case(provider=provider, api=api, **axes)
        for rule in CONSTRAINTS:
            alone = [
                rule.rejects(Case(provider=provider, api=api, **{name: axes[name] for name in group}))
                for group in rule.about
            ]
            assert any(alone) == rule.rejects(case), (rule.name, str(case))


@pytest.mark.parametrize(("text", "said"), (("cover = 1", "cover = 1"), ('cover = "all"', "cover = all")))
def test_a_cover_of_no_pairs_is_a_usage_error(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[[block]]\n{text}\nbias = [0, 1]\n")
    with pytest.raises(UsageError, match=rf"own.toml, line 2: {said}: expected how many values"):
        matrix.load(str(file))


def test_a_line_of_a_cover_that_is_no_case_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[[block]]\ncover = 2\nbias = [0, 1]\n")
    file.with_suffix(".cover").write_text("# own\ntorch:api=loop\ntorch:api=loop:colour=red\n")
    with pytest.raises(UsageError, match=r"own.cover, line 3: unknown axis 'colour'"):
        matrix.load(str(file))
