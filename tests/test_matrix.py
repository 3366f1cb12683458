"""Does a matrix hold every combination it asks for, and does a wrong file say where it is wrong?"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from gradcheck_cli import plugins
from gradcheck_cli.errors import UsageError
from gradcheck_cli.matrices import constraints, matrix
from gradcheck_cli.matrices.matrix import Excluded
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.roles import CHAIN

TE, TORCH = plugins.BUILT_IN["te"], plugins.BUILT_IN["torch"]
PLUGIN = Candidate(name="mine", apis={"fast": "mine:build"}, summary="a plug-in", distribution="mine")
PATTERNS = ("balanced", "uneven", "empty_first", "empty_middle", "empty_last", "hot", "all_empty")
SWITCHES = tuple(itertools.product((False, True), (False, True)))

# The cells of the issue's two scripts, in the order of their output.
SEED_MODULE = [
    ("module", dtype, single, fuse, 16, 32)
    for dtype in ("bf16", "fp32")
    for single in (False, True)
    for fuse in (False, True)
]
SEED_CHAIN = [(CHAIN, dtype, True, fuse, 16, 32) for dtype in ("bf16", "fp32") for fuse in (False, True)]

# Contents of a file -> line of the mistake, and a part of the message.
WRONG = {
    "an unknown axis": ('[[block]]\ndtpe = "bf16"\n', 2, "unknown axis 'dtpe': expected one of provider, api, path"),
    "an unknown value": ('[[block]]\n\ndtype = "fp8"\n', 3, "dtype=fp8: expected bf16 or fp16 or fp32"),
    "an unknown value in a long list": (
        '[[block]]\ndtype = [\n  "bf16", # not fp8\n  "fp8",\n]\n',
        4,
        "dtype=fp8: expected bf16 or fp16 or fp32",
    ),
    "a value that another block has too": (
        "[[block]]\nnum_gemms = 4\n[[block]]\nbias = [0, 1]\nnum_gemms = [4, 0]\n",
        5,
        "num_gemms=0: expected a whole number, 1 to 1048576",
    ),
    "an unknown provider": ('[[block]]\nprovider = ["te", "jax"]\n', 2, "provider=jax: expected te or torch"),
    "an unknown api": (
        '[[block]]\napi = "modul"\n',
        2,
        "api=modul: expected module or op or op_mlp or grouped_mm or loop",
    ),
    "an unknown api left out": ('[[block]]\napi = "not te:modul"\n', 2, "api=modul: expected module or op"),
    "an api left out of nobody": ('[[block]]\napi = "not module"\n', 2, "expected `not provider:api`"),
    "splits without brackets of their own": (
        "[[block]]\nm_splits = [64, 0]\n",
        2,
        "brackets of its own: [[64, 0, 128]]",
    ),
    "a negative share": ("[[block]]\nm_splits = [[64, -1]]\n", 2, "m_splits=64,-1: expected balanced, uneven"),
    "a list in a list": (
        '[[block]]\n"dtype" = [["bf16"]]\n',
        2,
        "expected a value or a list of values, found a list in it",
    ),
    "an axis and its short name": ("[[block]]\nfuse_wgrad = 1\nfuse_wgrad_accumulation = 0\n", 3, "stands twice"),
    "no value": ("[[block]]\nbias = 0\ndtype = []\n", 3, "dtype = [] leaves no case"),
    "an unknown key": (
        'description = "x"\ndtype = "bf16"\n',
        2,
        "unknown key 'dtype': expected description, include, or axes",
    ),
    "an unknown table": ("[[block]]\n[options]\nx = 1\n", 2, "unknown key 'options'"),
    "single brackets": ("\n[block]\nbias = 0\n", 2, "expected at least one [[block]], in double brackets"),
    "nothing": ("", 1, "expected at least one [[block]]"),
    "no names of matrices": ("\ninclude = 3\n", 2, "expected include = [...] with the names of matrices"),
}
NOT_TOML = {
    "a value without its end": ('[[block]]\ndtype = "bf16\n', "at line 2, column 14"),
    "a key without a value": ("[[block]]\n\ndtype\n", "at line 3, column 6"),
}
EXCLUDED = {
    "the op has no switch for the path": ("te:api=op:path=native", "op-path-is-left-open"),
    "torch has no switch for the path": ("torch:api=loop:path=legacy", "path-is-a-module-switch"),
    "the op has no CUTLASS": ("te:api=op:path=cutlass", "path-is-a-module-switch"),
    "without a token no kernel tells": ("te:api=module:path=cutlass:m_splits=all_empty", "cutlass-needs-tokens"),
    "one expert is never uneven": ("te:api=op:m_splits=uneven:num_gemms=1", "pattern-needs-experts"),
    "two experts have no middle": ("te:api=op:m_splits=empty_middle:num_gemms=2", "pattern-needs-experts"),
    "one token each is never uneven": ("te:api=op:m_splits=uneven:tokens_per_expert=1", "pattern-needs-tokens"),
    "one token each is never hot": ("te:api=op:m_splits=hot:tokens_per_expert=1", "pattern-needs-tokens"),
}
RUN = (
    "te:api=module:path=native",
    "te:api=module:path=cutlass:m_splits=0,7",
    "te:api=op:m_splits=uneven:num_gemms=2",
    "te:api=op:m_splits=empty_middle:num_gemms=3",
    "te:api=op:m_splits=7",
    "te:api=op:m_splits=32,32,32",
    "te:api=op:tokens_per_expert=1",
    "torch:api=loop:m_splits=all_empty:num_gemms=1",
)


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def cases(name: str, *providers: Candidate, seed: int = 0) -> list[Case]:
    found = matrix.enumerate_cases(matrix.load(name), list(providers), seed)
    return [one for one in found if isinstance(one, Case)]


def ids(name: str, *providers: Candidate) -> list[str]:
    return [str(case) for case in cases(name, *providers)]


def test_the_matrices_of_the_command_line_are_there_with_a_description() -> None:
    there = dict(matrix.available())
    assert there.keys() >= {"smoke", "core", "full", "nightly", "issue-3234", "selftest"}
    assert all(there.values())


@pytest.mark.parametrize(("api", "path"), (("module", "legacy"), ("module", "native"), ("op", "auto")))
def test_core_has_every_cell_of_each_path_of_transformer_engine(api: str, path: str) -> None:
    cells = [
        (c.single_grouped_weight, c.fuse_wgrad_accumulation, c.dtype, c.m_splits)
        for c in cases("core", TE)
        if (c.api, c.path) == (api, path)
    ]
    asked = itertools.product((False, True), (False, True), ("bf16", "fp16", "fp32"), PATTERNS[:2] + PATTERNS[3:4])
    assert sorted(cells) == sorted(asked)


def test_core_asks_the_module_for_a_path_and_nobody_else() -> None:
    assert Counter((c.provider, c.api, c.path) for c in cases("core", TE, TORCH)) == {
        ("te", "module", "legacy"): 36,
        ("te", "module", "native"): 36,
        ("te", "op", "auto"): 36,
        ("torch", "grouped_mm", "auto"): 36,
        ("torch", "loop", "auto"): 36,
    }


def test_core_holds_the_apis_of_a_plug_in_too() -> None:
    assert {case.api for case in cases("core", PLUGIN)} == {"fast"}


@pytest.mark.parametrize("provider", (TE, TORCH), ids=("te", "torch"))
def test_smoke_is_a_handful_and_still_sees_every_role(provider: Candidate) -> None:
    found = cases("smoke", provider)
    assert len(found) == 8
    layers = set(provider.apis) - {CHAIN}
    assert {(c.api, c.bias) for c in found} >= {(api, True) for api in layers}
    assert {(c.single_grouped_weight, c.fuse_wgrad_accumulation) for c in found} == set(SWITCHES)


@pytest.mark.parametrize("provider", (TE, TORCH), ids=("te", "torch"))
def test_exhaustive_holds_core(provider: Candidate) -> None:
    assert set(cases("core", provider)) < set(cases("exhaustive", provider))
    assert len(cases("exhaustive", provider)) > 1000


@pytest.mark.parametrize("provider", (TE, TORCH), ids=("te", "torch"))
def test_full_fits_some_minutes(provider: Candidate) -> None:
    assert 250 <= len(cases("full", provider)) <= 600


@pytest.mark.parametrize("provider", (TE, TORCH), ids=("te", "torch"))
def test_nightly_fits_a_night_and_its_file_a_repository(provider: Candidate) -> None:
    assert 400 <= len(cases("nightly", provider)) <= 1500
    assert Path(matrix.__file__).parents[2].joinpath("cases", "nightly.cover").stat().st_size < 1_000_000


def test_full_has_every_value_that_an_axis_is_asked_with() -> None:
    found = cases("full", TE, TORCH)
    assert {c.m_splits for c in found} >= {*PATTERNS, "64,0,128"}
    assert {c.num_gemms for c in found} >= {1, 2, 8, 64, 65, 128}
    assert {c.tokens_per_expert for c in found} >= {15, 16, 17, 32, 127, 128, 129}
    assert {c.grad_output for c in found} == {"random", "expanded", "transposed", "offset"}
    assert {c.microbatches for c in found} == {1, 2, 3, 5}
    apart = ("seed", "backward_override")  # of fp8
    untouched = [name for name in AXES if name not in apart and len({getattr(c, name) for c in found}) < 2]
    assert untouched == []


def test_a_matrix_that_includes_others_has_their_cases_after_its_own() -> None:
    grown = [cases(name, TORCH) for name in ("full", "calling", "streams", "steps", "repeat")]
    assert set(grown[0]) > {case for own in grown[1:] for case in own}
    assert list(cases("sequences", TORCH)) == list(dict.fromkeys(c for own in grown[1:] for c in own))


def test_a_file_may_include_a_matrix_and_no_block_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('include = ["smoke"]\n')
    assert matrix.load(str(own)).blocks == matrix.load("smoke").blocks


def test_a_matrix_that_includes_itself_is_refused(tmp_path: Path) -> None:
    own, other = tmp_path / "own.toml", tmp_path / "other.toml"
    own.write_text(f'include = ["{other}"]\n')
    other.write_text(f'include = ["{own}"]\n')
    with pytest.raises(UsageError, match=r"expected no matrix to include itself, found .*own.toml, .*other.toml do"):
        matrix.load(str(own))


def test_issue_3234_is_the_seed_cell_by_cell_in_its_order() -> None:
    cells = [
        (c.api, c.dtype, c.single_grouped_weight, c.fuse_wgrad_accumulation, c.in_features, c.out_features)
        for c in cases("issue-3234", TE, TORCH)
    ]
    assert cells == SEED_MODULE + SEED_CHAIN


def test_issue_3234_runs_as_the_seed_does() -> None:
    found = cases("issue-3234", TE)
    assert {c.splits() for c in found} == {(4, 4)}
    assert {(c.microbatches, c.grad_output, c.path, c.bias) for c in found} == {(1, "expanded", "auto", False)}


@pytest.mark.parametrize("name", ("smoke", "core", "full", "exhaustive"))
def test_a_case_stands_once_however_many_blocks_hold_it(name: str) -> None:
    found = matrix.enumerate_cases(matrix.load(name), [TE, TORCH], 0)
    assert max(Counter(found).values()) == 1


def test_the_first_axis_of_a_block_varies_slowest(tmp_path: Path) -> None:
    name = file(tmp_path, '[[block]]\nbias = [0, 1]\ndtype = ["fp32", "bf16"]\napi = "op"\n')
    assert ids(name, TE) == [
        "te:api=op:dtype=fp32",
        "te:api=op",
        "te:api=op:dtype=fp32:bias=1",
        "te:api=op:bias=1",
    ]


def test_blocks_that_overlap_keep_the_first_place(tmp_path: Path) -> None:
    name = file(tmp_path, '[[block]]\napi = "op"\nbias = 1\n[[block]]\napi = "op"\nbias = [0, 1]\n')
    assert ids(name, TE) == ["te:api=op:bias=1", "te:api=op"]


def test_a_block_without_an_api_takes_all_of_the_provider(tmp_path: Path) -> None:
    assert ids(file(tmp_path, "[[block]]\nbias = 1\n"), TORCH) == [
        "torch:api=grouped_mm:bias=1",
        "torch:api=loop:bias=1",
    ]


def test_a_block_takes_those_of_its_apis_that_the_provider_has(tmp_path: Path) -> None:
    name = file(tmp_path, '[[block]]\napi = ["op", "loop"]\n')
    assert ids(name, TE, TORCH) == ["te:api=op", "torch:api=loop"]


def test_a_block_takes_all_apis_but_those_named_with_not(tmp_path: Path) -> None:
    name = file(tmp_path, '[[block]]\napi = ["not te:op", "not torch:loop"]\n')
    assert ids(name, TE, TORCH) == ["te:api=module", "te:api=op_mlp", "torch:api=grouped_mm", "torch:api=op_mlp"]


def test_a_block_of_another_provider_contributes_nothing(tmp_path: Path) -> None:
    assert ids(file(tmp_path, '[[block]]\nprovider = "te"\n'), TORCH) == []


def test_a_list_of_splits_brings_its_own_number_of_experts(tmp_path: Path) -> None:
    text = '[[block]]\napi = "op"\nnum_gemms = [4, 8]\ntokens_per_expert = 9\nm_splits = ["hot", [64, 0, 128]]\n'
    assert ids(file(tmp_path, text), TE) == [
        "te:api=op:m_splits=hot:tokens_per_expert=9",
        "te:api=op:m_splits=64,0,128",
        "te:api=op:m_splits=hot:num_gemms=8:tokens_per_expert=9",
    ]


def test_the_short_name_of_an_axis_is_understood(tmp_path: Path) -> None:
    name = file(tmp_path, '[[block]]\napi = "op"\nfuse_wgrad = 1\n')
    assert ids(name, TE) == ["te:api=op:fuse_wgrad_accumulation=1"]


def test_a_seed_is_given_to_every_case() -> None:
    assert {case.seed for case in cases("full", TE, TORCH, seed=7)} == {7}


def test_seed_0_leaves_the_seeds_of_the_file(tmp_path: Path) -> None:
    assert {case.seed for case in cases(file(tmp_path, "[[block]]\nseed = [3, 5]\n"), TE)} == {3, 5}


def test_an_excluded_combination_stays_in_its_place_with_its_reason(tmp_path: Path) -> None:
    name = file(tmp_path, '[[block]]\napi = "op"\npath = ["legacy", "auto"]\n')
    first, second = matrix.enumerate_cases(matrix.load(name), [TE], 0)
    assert isinstance(first, Excluded)
    assert "ask for path=auto" in first.why
    assert second == Case.parse("te:api=op")


@pytest.mark.parametrize(("text", "constraint"), tuple(EXCLUDED.values()), ids=EXCLUDED)
def test_a_meaningless_combination_is_excluded_by_name(text: str, constraint: str) -> None:
    found = matrix.excluded(Case.parse(text))
    assert found is not None
    assert (found.constraint, found.case) == (constraint, Case.parse(text))


@pytest.mark.parametrize("text", RUN)
def test_what_some_machine_can_run_is_not_excluded(text: str) -> None:
    assert matrix.excluded(Case.parse(text)) is None


@pytest.mark.parametrize("path", ("legacy", "native"))
def test_the_path_of_an_op_may_be_asked_for_by_name(path: str) -> None:
    assert matrix.excluded(Case.parse(f"te:api=op:path={path}"), named=True) is None
    assert [case for case in cases("full", TE) if case.api == "op" and case.path != "auto"] == []


@pytest.mark.parametrize("text", ("te:api=op:path=cutlass", "te:api=op_mlp:path=native", "torch:api=loop:path=legacy"))
def test_no_other_layer_may_be_asked_for_a_path_by_name(text: str) -> None:
    assert matrix.excluded(Case.parse(text), named=True) is not None


def test_constraints_have_names_of_their_own_and_a_reason() -> None:
    assert all(it.why for it in constraints.CONSTRAINTS)
    assert len({it.name for it in constraints.CONSTRAINTS}) == len(constraints.CONSTRAINTS) > 0


@pytest.mark.parametrize(("text", "line", "message"), tuple(WRONG.values()), ids=WRONG)
def test_a_wrong_file_is_refused_with_its_line_and_what_is_allowed(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        matrix.load(file(tmp_path, text))
    assert f"mine.toml, line {line}: " in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(("text", "place"), tuple(NOT_TOML.values()), ids=NOT_TOML)
def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(UsageError, match=rf"mine\.toml is not TOML: .*{place}"):
        matrix.load(file(tmp_path, text))


def test_a_file_that_is_not_text_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"binary\.toml cannot be read: expected a TOML file in UTF-8"):
        matrix.load(str(tmp_path / "binary.toml"))


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match=r"unknown matrix 'cor': expected one of .*core, .*smoke, .*, or the path of"):
        matrix.load("cor")


def test_the_name_of_a_matrix_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "core").write_text("[[block]]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert len(matrix.load("core").blocks) == 2


def test_matrices_lie_next_to_the_package_in_a_checkout(tmp_path: Path) -> None:
    assert matrix.folder(tmp_path / "package") == tmp_path / "cases"


def test_matrices_lie_in_the_package_once_installed(tmp_path: Path) -> None:
    (tmp_path / "package" / "cases").mkdir(parents=True)
    (tmp_path / "cases").mkdir()
    assert matrix.folder(tmp_path / "package") == tmp_path / "package" / "cases"
