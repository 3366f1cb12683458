"""Is the reference right, and is exact data exact?"""

from __future__ import annotations

import functools

import pytest
import torch
from in_process import engine, verdict

from gradcheck_cli import pipeline, plugins
from gradcheck_cli.compute import reference
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.reference import LARGEST_KEPT, Reference, compute, in_units, prepare
from gradcheck_cli.errors import HarnessError
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import FILLS, Fill, Role
from gradcheck_cli.records.roles import is_chain
from gradcheck_cli.records.verdict import Outcome

CPU = torch.device("cpu")
TINY = Case.parse("torch:api=loop:m_splits=3,0,2:in_features=4:out_features=5:bias=1:dtype=fp32")
ROLES: tuple[Role, ...] = ("fprop", "dgrad", "wgrad", "bgrad")
# Every matrix but full whole; of full, with its larger shapes, every so-manieth case.
EVERY = {"smoke": 1, "core": 1, "issue-3234": 1, "full": 11, "selftest": 1}
# One expert's bgrad is a sum of 300 ones, and bf16 holds integers up to 256: no thinning helps.
TOO_LONG = "torch:api=loop:m_splits=300,2:grad_output=expanded:bias=1:in_features=8:out_features=8"


def output(inputs: Inputs, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """y of the first microbatch, row by row: no slicing by splits, each row names its expert."""
    experts = [i for i, size in enumerate(TINY.splits(0)) for _ in range(size)]
    return torch.stack([weight[i] @ row + bias[i] for i, row in zip(experts, x, strict=True)])


@functools.cache
def tiny() -> Reference:
    return prepare(TINY, "normal", CPU)


def leaves() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = tiny().inputs
    assert inputs.bias is not None
    return tuple(t.double().clone().requires_grad_() for t in (inputs.x[0], inputs.weight, inputs.bias))  # type: ignore[return-value]


@functools.cache
def cases(name: str) -> list[Case]:
    """What a matrix asks of the reference, each case once however many candidates and layouts share it."""
    points = matrix.enumerate_cases(matrix.load(name), list(plugins.BUILT_IN.values()), 0)
    asked = [one for one in points if isinstance(one, Case)]
    distinct = {(one.axes() | {"provider": "", "api": "", "path": ""}).__repr__(): one for one in asked}
    return list(distinct.values())[:: EVERY[name]]


def test_the_output_is_that_of_a_product_row_by_row() -> None:
    torch.testing.assert_close(tiny().roles[0]["fprop"].value, output(tiny().inputs, *leaves()).detach())


@pytest.mark.parametrize(("role", "leaf"), (("dgrad", 0), ("wgrad", 1), ("bgrad", 2)))
def test_gradients_are_those_of_autograd_in_fp64(role: Role, leaf: int) -> None:
    given = leaves()
    output(tiny().inputs, *given).backward(tiny().inputs.grad_output[0].double())
    found = given[leaf].grad
    assert found is not None
    torch.testing.assert_close(tiny().roles[0][role].value, found)


@pytest.mark.parametrize(("role", "leaf"), (("dgrad", 0), ("wgrad", 1), ("bgrad", 2)))
def test_gradients_are_those_of_finite_differences(role: Role, leaf: int) -> None:
    grad_output = tiny().inputs.grad_output[0].double()
    found = tiny().roles[0][role].value.flatten()
    for at in range(0, len(found), 3):
        loss = []
        for step in (1e-4, -1e-4):
            moved = [one.detach().clone() for one in leaves()]
            moved[leaf].view(-1)[at] += step
            loss.append((output(tiny().inputs, *moved) * grad_output).sum())
        assert float(loss[0] - loss[1]) / 2e-4 == pytest.approx(float(found[at]), abs=1e-8)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("microbatch", (0, 1))
def test_no_value_exceeds_its_scale_nor_its_scale_its_energy_times_sqrt_n(role: Role, microbatch: int) -> None:
    exact = tiny().roles[microbatch][role]
    assert (exact.value.abs() <= exact.scale * (1 + 1e-12)).all()
    if role in ("dgrad", "wgrad"):
        assert (exact.energy <= exact.scale * (1 + 1e-12)).all()
        assert (exact.scale <= exact.energy * 5**0.5 * (1 + 1e-12)).all()


def test_the_scale_of_a_product_is_that_of_the_magnitudes() -> None:
    inputs = tiny().inputs
    x, weight, bias = (t.detach().abs() for t in leaves())
    torch.testing.assert_close(tiny().roles[0]["fprop"].scale, output(inputs, x, weight, bias))


def test_an_expert_without_tokens_gets_exactly_nothing() -> None:
    roles = tiny().roles[0]
    assert not any(roles[role].value[1].any() or roles[role].scale[1].any() for role in ("wgrad", "bgrad"))


@pytest.mark.parametrize("name", EVERY)
def test_exact_data_is_exact_for_every_case_of_a_matrix(name: str) -> None:
    layers = [case for case in cases(name) if not is_chain(case)]
    found = {str(case): prepare(case, "exact", CPU).inapplicable for case in layers}
    assert {case: why for case, why in found.items() if why} == {}


@pytest.mark.parametrize("name", ("smoke", "core", "issue-3234"))
def test_every_exact_result_is_an_integer_that_its_dtype_holds(name: str) -> None:
    for case in cases(name):
        reference = prepare(case, "exact", CPU)
        for role, exact in (item for roles in reference.roles for item in roles.items()):
            value, scale = (in_units(one, reference.exponents[role]) for one in (exact.value, exact.scale))
            assert torch.equal(value, value.round()), case
            assert scale.numel() == 0 or scale.max() <= reference.limit, case


@pytest.mark.parametrize("name", ("smoke", "core"))
def test_exact_data_leaves_something_to_be_delivered_to_each_expert_with_tokens(name: str) -> None:
    for case in cases(name):
        reference, splits = prepare(case, "exact", CPU), case.splits(0)
        given = [bool(wgrad.any()) for wgrad in reference.roles[0]["wgrad"].value]
        assert given == [bool(size) for size in splits], case


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
def test_the_largest_scale_bounds_everything_that_is_summed(fill: Fill, dtype: str) -> None:
    case = Case.parse(f"torch:api=loop:bias=1:m_splits=uneven:dtype={dtype}")
    reference = prepare(case, fill, CPU)
    total = torch.stack([roles["wgrad"].scale for roles in reference.roles]).sum(0)
    sums = {"wgrad": total, "fprop": reference.roles[0]["fprop"].scale}
    largest = [float(in_units(scale, reference.exponents[role]).max()) for role, scale in sums.items()]
    assert reference.largest_scale >= max(largest) > 1


KEPT = Case.parse("torch:api=loop:m_splits=5,0,9:in_features=8:out_features=8:seed=8")  # no other test draws it


@pytest.mark.parametrize(("smaller", "kept"), ((0, True), (1, False)), ids=["at the limit", "a byte above it"])
def test_a_reference_is_kept_for_the_next_case_up_to_a_size(
    monkeypatch: pytest.MonkeyPatch,
    smaller: int,
    kept: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(reference, "LARGEST_KEPT", reference.tensor_bytes(KEPT) - smaller)
    assert (prepare(KEPT, "exact", CPU) is prepare(KEPT, "exact", CPU)) is kept


def test_a_large_reference_takes_no_place_among_those_that_are_kept() -> None:
    large = Case.parse("torch:api=loop:m_splits=1,1:in_features=1024:out_features=1024")
    assert reference.tensor_bytes(large) > LARGEST_KEPT
    before = reference._kept.cache_info()
    prepare(large, "normal", CPU)
    assert reference._kept.cache_info() == before


def test_the_size_of_a_reference_is_that_of_its_tensors() -> None:
    kept = [part for roles in prepare(KEPT, "exact", CPU).roles for exact in roles.values() for part in exact[:3]]
    assert reference.tensor_bytes(KEPT) == sum(part.numel() * part.element_size() for part in kept)


# What stands in the way of a reference -> what the run is told.
OUT_OF_MEMORY: dict[str, Exception] = {
    "torch on the CPU": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
    "torch on a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64 MiB."),
    "Python": MemoryError("Unable to allocate 7.45 GiB"),
    "Python, without a word": MemoryError(),
}


def run_in_spite_of(error: Exception, where: str) -> None:
    """A case whose reference or measuring raises."""

    def fail(*_: object, **__: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"gradcheck_cli.compute.{where}", fail)
        job = pipeline.job(KEPT)
        engine(job.target).run(job)


@pytest.mark.parametrize("where", ("engine.prepare", "stage.contents", "runs.measure"))
@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_a_reference_that_finds_no_memory_ends_the_run_and_is_no_word_on_the_candidate(
    error: Exception, where: str
) -> None:
    with pytest.raises(HarnessError) as ended:
        run_in_spite_of(error, where)
    assert str(ended.value).startswith(f"no memory for the reference of {KEPT}: ")


@pytest.mark.parametrize("error", (RuntimeError("shapes disagree"), KeyError("memory")), ids=["runtime", "key"])
def test_any_other_failure_of_the_reference_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as ended:
        run_in_spite_of(error, "engine.prepare")
    assert ended.value is error


def test_sums_too_long_to_be_exact_are_said_to_be_so() -> None:
    said = prepare(Case.parse(TOO_LONG), "exact", CPU).inapplicable
    assert said == "sums of |a||b| reach 302, and bf16 holds integers up to 256 exactly"


def test_sums_too_large_for_the_dtype_are_no_random_data() -> None:
    case = Case.parse("torch:api=loop:dtype=fp16:m_splits=2,2:in_features=4:out_features=4")
    inputs = prepare(case, "normal", CPU).inputs
    huge = Inputs(inputs.weight, None, inputs.x, tuple(g * 30000 for g in inputs.grad_output), inputs.prefill)
    assert compute(case, huge, "normal").inapplicable.endswith("and the largest fp16 is 6.55e+04")


def test_a_case_without_exact_data_is_judged_on_random_data() -> None:
    found = verdict(TOO_LONG)
    assert (found.outcome, found.channels["normal"]) == (Outcome.PASSED, "judged")


def test_a_case_without_exact_data_says_so() -> None:
    assert verdict(TOO_LONG).channels["exact"].startswith("sums of |a||b| reach")
