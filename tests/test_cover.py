"""Does `full` hold every pair of axis values that may stand together, and is its cover the one of its values?"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest

from gradcheck_cli import plugins
from gradcheck_cli.errors import UsageError
from gradcheck_cli.expression import axes_named, compile_expression
from gradcheck_cli.matrices import cover, matrix
from gradcheck_cli.matrices.constraints import CONSTRAINTS
from gradcheck_cli.matrices.matrix_file import Axis, Block
from gradcheck_cli.records.capability import closed
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.recipe import RECIPES
from gradcheck_cli.reporters.folding import KEY
from gradcheck_cli.reporters.read import read

REPORTS = Path(__file__).parent.parent / "reports"
BLOCK = matrix.covered(matrix.load("full"))
NIGHTLY = matrix.covered(matrix.load("nightly"))
VALUES = cover.values(BLOCK)
LAYERS = cover.layers()

CALLED = {
    axis.name: axis.values
    for name in ("calling", "streams", "steps", "repeat")
    for axis in matrix.covered(matrix.load(name)).axes
    if axis.name
    in (
        "recompute",
        "inference",
        "autocast",
        "stream",
        "cuda_graph",
        "retain_graph",
        "pipelined",
        "compile",
        "optimizer",
        "moved",
        "deterministic",
        "repeat",
    )
}


# Small enough for its product to be written out: what a cover must hold is then known without the code that makes it.
SMALL = Block(
    axes=tuple(
        Axis(name=name, values=own)
        for name, own in {
            "path": ("auto", "legacy", "native"),
            "single_grouped_weight": (False, True),
            "fuse_wgrad_accumulation": (False, True),
            "main_grad_dtype": ("fp32", "bf16"),
            "frozen_weights": ("none", "all", "first"),
            "frozen_input": (False, True),
            "dtype": ("bf16", "fp16", "fp32"),
            "padded_tail": ("none", "nan"),
            "num_gemms": (1, 2, 65),
        }.items()
    ),
    cover=2,
)
KEPT_APART = ("dtype=fp32 and path=native", "num_gemms > 64 and (path=native or not single_grouped_weight)")


def asked_of(block: Block) -> list[Case]:
    values = cover.values(block)
    product = (dict(zip(values, row, strict=True)) for row in itertools.product(*values.values()))
    cases = [Case(provider="te", api="module", **axes) for axes in product]
    return [case for case in cases if matrix.excluded(case) is None]


def small(cases: list[Case], strength: int) -> set[tuple[tuple[str, object], ...]]:
    """The combinations of the axes of SMALL, in its order."""
    names = list(cover.values(SMALL))
    rows = [[(name, case.axes()[name]) for name in names] for case in cases]
    return {some for row in rows for some in itertools.combinations(row, strength)}


def refused(case: Case, here: Environment) -> bool:
    """By the tables, which do not know which path te:api=op takes with a tail: not the legacy one, but in fp32."""
    names = {due.name for due in closed(case, here)}
    return bool(names - ({"legacy-takes-no-tail"} if case.dtype != "fp32" else set()))


def of_layer(provider: str, api: str, block: Block = BLOCK) -> list[Case]:
    return [case for case in block.listed if (case.provider, case.api) == (provider, api)]


@pytest.mark.parametrize(("provider", "api"), LAYERS, ids=[f"{provider}-{api}" for provider, api in LAYERS])
def test_every_case_of_the_cover_has_values_of_the_matrix_and_may_be_asked(provider: str, api: str) -> None:
    for block, fewest, most in ((BLOCK, 20, 120), (NIGHTLY, 50, 600)):
        own = cover.values(block)
        cases = of_layer(provider, api, block)
        assert fewest < len(cases) == len(set(cases)) < most
        assert [matrix.excluded(case) for case in cases] == [None] * len(cases)
        assert [name for name, values in own.items() for case in cases if getattr(case, name) not in values] == []


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


@pytest.mark.parametrize(("provider", "api"), LAYERS, ids=[f"{provider}-{api}" for provider, api in LAYERS])
def test_the_cover_lacks_nothing_that_the_constraints_allow(provider: str, api: str) -> None:
    for block, fewest in ((BLOCK, 1_000), (NIGHTLY, 10_000)):
        found = cover.held(provider, api, block, of_layer(provider, api, block))
        assert (found.allowed > fewest, found.missing) == (True, []), "run `make covers`"


def test_nightly_asks_for_nothing_that_full_does_not() -> None:
    asked = cover.values(NIGHTLY)
    assert asked.keys() == VALUES.keys()
    assert [name for name, own in asked.items() if not set(own) <= set(VALUES[name])] == []
    assert {name for name, own in asked.items() if own != VALUES[name]} == {"num_gemms", "tokens_per_expert"}


def test_a_cover_is_written_anew_whatever_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[[block]]\ncover = 2\nbias = [0, 1]\nfrozen_bias = [0, 1]\n")
    file.with_suffix(".cover").write_text("torch:api=loop:an_axis_of_old=1\n")
    assert "torch:loop: 3 cases hold 3 of 3 combinations of 2 values" in cover._write(file)
    assert cover._with_cover(tmp_path) == [str(file)]
    listed = {line for line in file.with_suffix(".cover").read_text().splitlines() if line.startswith("torch:api=loop")}
    assert listed == {"torch:api=loop", "torch:api=loop:bias=1", "torch:api=loop:frozen_bias=1:bias=1"}


@pytest.mark.parametrize("strength", (2, 3))
def test_a_cover_holds_all_that_some_case_of_the_product_holds_and_says_what_it_lacks(strength: int) -> None:
    block = msgspec.structs.replace(SMALL, cover=strength)
    allowed = asked_of(block)
    listed = cover.cover("te", "module", block, KEPT_APART)
    assert len(listed) < len(allowed) / 4
    assert small(listed, strength) == small(allowed, strength)
    assert cover.held("te", "module", block, listed) == cover.Held(allowed=len(small(allowed, strength)), missing=[])
    without = cover.held("te", "module", block, listed[1:])
    assert without.allowed == len(small(allowed, strength))
    named = {
        tuple((name, int(value) if isinstance(value, bool) else value) for name, value in some)
        for some in without.missing
    }
    assert named == small(listed, strength) - small(listed[1:], strength) != set()


def test_what_is_kept_apart_hides_nothing_that_can_do_without_it() -> None:
    tests = [compile_expression(text) for text in KEPT_APART]
    asked, listed = asked_of(SMALL), cover.cover("te", "module", SMALL, KEPT_APART)
    for most in range(len(tests) + 1):
        without_more = [[case for case in of if sum(holds(case) for holds in tests) <= most] for of in (asked, listed)]
        assert small(without_more[0], 2) == small(without_more[1], 2)
    assert len(small(asked, 2)) > len(small([case for case in asked if not any(holds(case) for holds in tests)], 2))


@pytest.mark.parametrize("version", ("2.17.1", "2.20.2"))
@pytest.mark.parametrize("api", ("module", "op"))
def test_what_a_hopper_refuses_hides_few_pairs_of_full(api: str, version: str) -> None:
    here = read(REPORTS / f"te-{version}-h200" / "full-cublas-13.5").environment
    asked = of_layer("te", api)
    executed = [case for case in asked if not refused(case, here)]
    assert len(executed) > 0.64 * len(asked)
    assert len(cover.combinations(executed, 2)) > 0.94 * len(cover.combinations(asked, 2))


def test_the_cases_of_a_cover_come_in_the_order_of_the_rows_of_a_table() -> None:
    made = cover.cover("te", "module", SMALL, KEPT_APART)
    for cases, values in ((made, cover.values(SMALL)), *((of_layer(*layer), VALUES) for layer in LAYERS)):
        rows = [[own.index(getattr(case, name)) for name, own in values.items() if name in KEY] for case in cases]
        assert rows == sorted(rows)
        assert len({tuple(row) for row in rows}) > 1


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
        axes["recipe"] = drawn.choice(("none", *RECIPES))
        axes["backward_override"] = drawn.choice(("none", "high_precision"))
        axes["quantized_model_init"] = drawn.choice((False, True))
        axes |= {name: drawn.choice(own) for name, own in CALLED.items()}
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


def test_an_expression_names_the_axes_that_it_speaks_of() -> None:
    assert axes_named("api=op and (fuse_wgrad or m_splits not in (hot)) and bias and api=op") == (
        "api", "fuse_wgrad_accumulation", "m_splits", "bias",
    )  # fmt: skip
