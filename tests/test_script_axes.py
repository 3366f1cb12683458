"""Does a script follow every axis: is a fault shown where the axis is turned, and none of a right layer?"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forked import forked
from te_scripts import written

from gradcheck_cli import reproducing
from gradcheck_cli.records.case import DEFAULTS, Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import Failure
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.scripted import Ran, Scripted
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reproduce.execute import execute, shows
from gradcheck_cli.reproduce.making import load_each
from gradcheck_cli.reproduce.makings import making
from gradcheck_cli.reproduce.script import HEADER
from gradcheck_cli.reproduce.scripting import TIMES, Headers, control, scripted
from gradcheck_cli.reproduce.wanted import FAULT, MOST_LINES, Data, Unscriptable

STAND_IN = Path(__file__).parent / "fake_te"
RAISED = Failure("case", Outcome.RAISED, "AcceleratorError")

# A fault, and the axis without which it would not be one, or which the script of it must follow.
SHOWN = (
    "wgrad_doubled:main_grad=absent",
    "wgrad_prefill_lost:fuse_wgrad=1:main_grad_dtype=bf16",
    "wgrad_doubled:fuse_wgrad=1:grad_added_to_main_grad=absent",
    "wgrad_dummy_unasked:fuse_wgrad=1:grad_added_to_main_grad=absent",
    "wgrad_not_overwritten:fuse_wgrad=1:overwrite_main_grad=all",
    "wgrad_not_overwritten:fuse_wgrad=1:overwrite_main_grad=some:m_splits=2,3",
    "wgrad_not_overwritten:fuse_wgrad=1:is_first_microbatch=first:microbatches=2",
    "wgrad_accumulated_in_bf16:fuse_wgrad=1:is_first_microbatch=first:microbatches=2",
    "wgrad_dummy_not_zero:fuse_wgrad=1:zero_out_wgrad=1",
    "wgrad_early:fuse_wgrad=1:delay_wgrad_compute=1",
    "wgrad_one_percent:delay_wgrad_compute=1",
    "wgrad_use_lost:tied_weights=1:microbatches=2",
    "wgrad_one_percent:tied_weights=1:microbatches=3:delay_wgrad_compute=1:fuse_wgrad=1",
    "wgrad_missing:tied_weights=1:microbatches=2",
    "wgrad_frozen_given:frozen_weights=first:m_splits=2,3",
    "wgrad_frozen_main_grad:frozen_weights=all",
    "wgrad_doubled:frozen_weights=last:m_splits=2,3",
    "wgrad_missing:frozen_weights=last:m_splits=2,3",
    "dgrad_frozen_given:frozen_input=1",
    "wgrad_doubled:frozen_input=1",
    "bgrad_frozen_given:frozen_bias=1:bias=1",
    "bgrad_doubled:single_grouped_bias=1:bias=1",
    "fprop_bias_missing:return_bias=1:bias=1",
    "wgrad_tail_read:padded_tail=nan",
    "bgrad_tail_read:padded_tail=large:bias=1",
    "dgrad_doubled:padded_tail=nan",
    "fprop_doubled:padded_tail=zero",
    "wgrad_doubled:grad_output=transposed",
    "dgrad_missing:grad_output=offset",
    "wgrad_doubled:input_layout=transposed",
    "fprop_doubled:input_layout=offset",
    "raises:input_layout=offset:grad_output=offset",
    "wgrad_doubled:recompute=reentrant:delay_wgrad_compute=1",
    "dgrad_missing:recompute=nonreentrant",
    "wgrad_missing:inference=no_grad",
    "wgrad_one_percent:inference=eval:delay_wgrad_compute=1:microbatches=2",
    "dgrad_doubled:autocast=1:dtype=fp16",
    "wgrad_missing:autocast=1:recompute=nonreentrant",
    "wgrad_doubled:compile=1:inference=no_grad",
    "wgrad_missing:deterministic=1:repeat=2",
)


def case_of(row: str) -> Case:
    """A small case of a fault."""
    sizes = {"m_splits": "2", "microbatches": "1", "in_features": "3", "out_features": "4"}
    return Case.parse(":".join([f"faults:api={row}", *(f"{k}={v}" for k, v in sizes.items() if f"{k}=" not in row)]))


@pytest.fixture(scope="module")
def shown() -> dict[str, Scripted]:
    """The script of every row, from one real worker, each run in a new process; torch's own layer is the contrast."""
    cases = {row: case_of(row) for row in SHOWN}
    with reproducing.bench(cases[SHOWN[0]], "cpu", 30.0) as on, ThreadPoolExecutor(2) as pool:
        for case in cases.values():
            on.judged(case)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reproducing, "execute", forked)
            patch.setattr(on, "passing", lambda _: [])
            patch.setattr(on, "contrasts", lambda case: [control(case)])
            done = pool.map(functools.partial(reproducing.script_of, on), cases.values())
            return dict(zip(SHOWN, done, strict=True))


@pytest.mark.parametrize("row", SHOWN)
def test_a_fault_is_shown_where_an_axis_is_turned_and_none_of_a_right_layer(
    shown: dict[str, Scripted], row: str
) -> None:
    found = shown[row]
    assert found.why_not == ""
    assert (found.fails, found.contrast_passes, found.of) == (TIMES, TIMES, TIMES)
    assert len(found.script.splitlines()) <= MOST_LINES


NATIVE, LEGACY, OP = "te:api=module:path=native", "te:api=module:path=legacy", "te:api=op"
# What Transformer Engine is told, on a case: a part of the lines.
TOLD = {
    f"{NATIVE}:input_layout=offset": "x = off(draw(sum(splits), K)).requires_grad_()",
    f"{NATIVE}:grad_output=offset": "g = off(draw(sum(splits), N))",
    f"{OP}:grad_output=transposed": "g = draw(sum(splits), N).T.contiguous().T",
    f"{NATIVE}:save_original_input=1": "save_original_input=True",
    f"{LEGACY}:m_splits_as=device": "y = layer(x, torch.tensor(splits, device=DEVICE))",
    f"{NATIVE}:m_splits_as=host": "y = layer(x, torch.tensor(splits))",
    f"{NATIVE}:m_splits_as=list": "y = layer(x, splits)",
    f"{OP}:m_splits_as=host": "y = layer(x, torch.tensor(splits))",
    f"{LEGACY}:fuse_wgrad=1:is_first_microbatch=first": "y = layer(x, splits, is_first_microbatch=k == 0)",
    f"{OP}:delay_wgrad_compute=1": "layer.backward_dw()",
    f"{NATIVE}:bias=1:single_grouped_bias=1": "biases = [layer.bias]",
    f"{LEGACY}:bias=1:return_bias=1": "for p, bs in [layer(x, splits)] for r, b in zip(p.split(splits), bs)",
    f"{OP}:fuse_wgrad=1:overwrite_main_grad=some": "for p in weights[1::2]: p.overwrite_main_grad = True",
    f"{NATIVE}:frozen_weights=last": "for p in weights[-1:]: p.requires_grad = False",
    f"{NATIVE}:recompute=te": "y = te.checkpoint(called, x, splits)",
    f"{LEGACY}:recompute=te:recipe=DelayedScaling": "return te.checkpoint(called, x, splits)",
    f"{LEGACY}:recompute=reentrant": "torch.utils.checkpoint.checkpoint(called, x, splits, use_reentrant=True)",
    f"{OP}:inference=eval": "layer.eval()",
    f"{OP}:deterministic=1": 'os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"',
    f"{OP}:autocast=1": "with torch.autocast(DEVICE, DTYPE): return layer(x, torch.tensor(splits, device=DEVICE))",
}


@pytest.mark.parametrize("case", TOLD)
def test_transformer_engine_is_told_what_the_case_says(case: str) -> None:
    assert TOLD[case] in "\n".join(written(case, RAISED))


def test_every_axis_is_turned_by_some_row() -> None:
    cases = [case.axes() for case in (*map(case_of, SHOWN), *map(Case.parse, TOLD))]
    turned = {axis for axis, plain in DEFAULTS.items() if any(axes[axis] != plain for axes in cases)}
    assert set(DEFAULTS) - turned == {
        "seed",
        "single_grouped_weight",
        "tokens_per_expert",
        "stream",  # not written yet, below
        "cuda_graph",
        "retain_graph",
        "pipelined",
        "optimizer",
        "moved",
        "backward_override",
        "quantized_model_init",
    }  # the others of test_script.py


QUANTISED = "te:api=module:single_grouped_weight=1:recipe=Float8CurrentScaling:m_splits=16,32:microbatches=1"


def test_a_missing_wgrad_of_a_quantised_layer_is_shown_under_its_recipe() -> None:
    lines = written(QUANTISED, Failure("wgrad", Outcome.MISSING, "none"))
    text = "\n".join(lines)
    assert "from transformer_engine.common.recipe import Float8CurrentScaling" in text
    assert "with te.autocast(enabled=True, recipe=recipe): return layer(*given, **named)" in text
    assert "y = quantised(x, [16, 32])" in text
    assert len(lines) + HEADER <= MOST_LINES
    override = written(f"{QUANTISED}:backward_override=dequantized", Failure("wgrad", Outcome.MISSING, "none"))
    assert 'recipe = Float8CurrentScaling(backward_override="dequantized")' in override


def test_weights_that_are_kept_quantised_are_made_under_their_recipe_before_it_is_called() -> None:
    lines = written(f"{QUANTISED}:quantized_model_init=1", Failure("wgrad", Outcome.MISSING, "none"))
    recipe = lines.index("recipe = Float8CurrentScaling()")
    assert lines[recipe + 1] == "with te.quantized_model_init(enabled=True, recipe=recipe):"
    assert lines[recipe + 2].startswith("    layer = te.GroupedLinear(")
    assert "quantized_model_init" not in "\n".join(written(QUANTISED, Failure("wgrad", Outcome.MISSING, "none")))
    knobs = "quantized_model_init=1:delay_wgrad_compute=1:save_original_input=1:frozen_weights=last"
    full = f"{QUANTISED.replace('single_grouped_weight=1', knobs)}:bias=1:return_bias=1:tied_weights=1"
    lines = written(full.replace("microbatches=1", "microbatches=3"), Failure("wgrad", Outcome.MISSING, "none"))
    assert len(lines) + HEADER <= MOST_LINES


# What is loaded into a layer, where its result depends on that.
LOADED = {
    "te:api=op:single_grouped_weight=1": ["layer.weight.rowwise_data.copy_(w.flatten())"],
    "te:api=op:single_grouped_weight=1:recipe=MXFP8": ["layer.weight.rowwise_data.copy_(w.flatten())"],
    "te:api=op:single_grouped_weight=1:recipe=MXFP8:quantized_model_init=1": [
        "for m, v in zip(layer.weight.quantized_tensors or layer.weight.split_into_quantized_tensors(), w): m.copy_(v)"
    ],
    "te:api=op:recipe=MXFP8:quantized_model_init=1": load_each(),
}


@pytest.mark.parametrize("case", LOADED)
def test_a_packed_weight_that_is_kept_quantised_is_loaded_member_by_member(case: str) -> None:
    assert making(Case.parse(case), "", {}, Environment()).load == LOADED[case]


KEPT = (
    "te:api=module:recipe=DelayedScaling",
    "te:api=module:path=native:recipe=Float8CurrentScaling:single_grouped_weight=1",
    "te:api=op:recipe=DelayedScaling",
    "te:api=op:recipe=Float8CurrentScaling:single_grouped_weight=1",
)


@pytest.mark.parametrize("case", KEPT)
def test_the_lines_of_a_layer_that_keeps_its_weights_quantised_run(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("FAKE_TE_VERSION", "2.20.2")
    kept = f"{case}:quantized_model_init=1:m_splits=16,32"
    lines = written(kept, Failure("wgrad", Outcome.MISSING, "none"), "cpu")
    assert execute("\n".join(lines), 60.0).output.splitlines()[-1] == "ok"


AS_IT_LIES = "te:api=op:recipe={}:bias={}:m_splits=16,32:in_features=32:out_features=48:grad_output=transposed"


@pytest.mark.parametrize("recipe", ("DelayedScaling", "Float8CurrentScaling"))
@pytest.mark.parametrize("role", ("dgrad", "wgrad", "bgrad"))
@pytest.mark.parametrize(("fault", "said"), (("", "ok"), ("grad_output as it lies", "FAULT")))
def test_a_wrong_value_of_a_quantised_layer_is_shown_in_integers(
    recipe: str, role: Role, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("FAKE_TE_VERSION", "2.20.2")
    monkeypatch.setenv("FAKE_TE_FAULT", fault)
    lines = written(AS_IT_LIES.format(recipe, int(role == "bgrad")), Failure(role, Outcome.INEXACT, ""), "cpu")
    assert len(lines) + HEADER <= MOST_LINES
    assert ".round()" in "\n".join(lines)
    assert execute("\n".join(lines), 60.0).output.splitlines()[-1].startswith(said)


def test_what_a_quantised_script_is_put_to_first_is_a_layer_without_a_recipe() -> None:
    case = Case.parse("te:api=op:recipe=Float8CurrentScaling:quantized_model_init=1:backward_override=dequantized")
    assert str(control(case)) == "torch:api=loop"


def test_a_layer_that_gradcheck_itself_quantises_gets_no_script() -> None:
    with pytest.raises(Unscriptable, match="gradcheck's own"):
        written("torch:api=loop:recipe=MXFP8", Failure("wgrad", Outcome.MISSING, "none"))


def test_an_x_grad_that_comes_with_the_second_use_is_not_compared_after_the_first() -> None:
    with pytest.raises(Unscriptable, match=r"x\.grad of the first of two is there after the second alone"):
        written(f"{NATIVE}:tied_weights=1", Failure("dgrad", Outcome.INEXACT, "doubled"))


def test_an_exception_of_a_gpu_is_waited_for_after_the_forward_and_after_the_backward() -> None:
    lines = [line.strip() for line in written(f"{NATIVE}:input_layout=offset", RAISED)]
    forward, backward = lines.index("y = layer(x, torch.tensor(splits, device=DEVICE))"), lines.index("y.backward(g)")
    assert lines[forward + 1] == lines[backward + 1] == "torch.cuda.synchronize()"
    assert len(lines) <= 21
    assert "synchronize" not in "\n".join(written(f"{NATIVE}:input_layout=offset", RAISED, "cpu"))


def test_a_fault_of_the_device_is_known_by_its_first_line() -> None:
    said = "CUDA error: misaligned address"
    failure = RAISED._replace(message=f"the candidate raised AcceleratorError in forward of microbatch 0: {said}")
    frame = '  File "torch/cuda/__init__.py", line 1108, in synchronize\n    return torch._C._cuda_synchronize()'
    output = (
        f"Traceback (most recent call last):\n{frame}\ntorch.AcceleratorError: {said}\nCompile with TORCH_USE_CUDA_DSA"
    )
    assert shows(Ran(fault="x", exit_status="exit code 1", output=output), failure)
    assert not shows(Ran(fault="x", exit_status="exit code 1", output=output.replace(said, "out of memory")), failure)


def test_the_lines_of_transformer_engine_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("FAKE_TE_VERSION", "2.20.2")
    knobs = "m_splits_as=device:m_splits=2,3:input_layout=offset:grad_output=transposed:main_grad_dtype=bf16"
    lines = written(f"{NATIVE}:fuse_wgrad=1:{knobs}", Failure("wgrad", Outcome.INEXACT, "doubled"), "cpu")
    assert execute("\n".join(lines), 60.0).output.splitlines()[-1] == "ok"


def test_what_became_of_the_other_gradients_is_told_where_there_is_room() -> None:
    doubled, knobs = Failure("wgrad", Outcome.INEXACT, "doubled"), "overwrite_main_grad=some:zero_out_wgrad=1"
    plain = written(f"{NATIVE}:fuse_wgrad=1", doubled)
    full = written(f"{NATIVE}:fuse_wgrad=1:{knobs}:is_first_microbatch=first:input_layout=offset", doubled)
    assert ["input.grad" in "\n".join(lines) for lines in (plain, full)] == [True, False]
    assert len(full) + HEADER <= MOST_LINES


# What is said of a weight, and a variant of which nobody asks that.
UNASKED = {
    "flag set": "te:api=module:fuse_wgrad=1",
    "flag not set": "te:api=module",
    "dummy not zero": "te:api=module:fuse_wgrad=1",
    "main_grad written": "te:api=module:fuse_wgrad=1",
    "before backward_dw": "te:api=module:fuse_wgrad=1",
    "frozen": "te:api=module",
}


@pytest.mark.parametrize("diagnosis", UNASKED)
def test_what_is_not_asked_of_a_variant_is_not_looked_at(diagnosis: str) -> None:
    with pytest.raises(Unscriptable):
        written(UNASKED[diagnosis], Failure("wgrad", Outcome.PROTOCOL, diagnosis))


@pytest.mark.parametrize(
    ("axis", "what"),
    (
        ("stream=side", "streams and graphs"),
        ("cuda_graph=torch", "streams and graphs"),
        ("retain_graph=1", "graphs that are retained"),
        ("pipelined=1", "forwards that wait for one another"),
        ("optimizer=sgd", "the steps of an optimizer"),
        ("moved=to_dtype", r"\.to\(\) and load_state_dict\(\)"),
    ),
)
def test_what_is_not_written_into_a_few_lines_yet_is_told(axis: str, what: str) -> None:
    with pytest.raises(Unscriptable, match=f"{what}.* are not written into a few lines yet"):
        written(f"{NATIVE}:{axis}", Failure("wgrad", Outcome.INEXACT, "doubled"))


def test_a_variant_without_a_script_is_passed_by() -> None:
    case, first, second = (Case.parse(f"te:api=module{tail}") for tail in (":bias=1", "", ":dtype=fp16"))

    def write(one: Case, _: Data) -> list[str]:
        if one == first:
            raise Unscriptable("nobody asks that")
        return [f'"{one}"']

    def run(text: str, _: str) -> Ran:
        wrong = str(case) in text and "te" in text
        return Ran(fault=f"{FAULT} x", exit_status="exit code 1") if wrong else Ran(exit_status="exit code 0")

    headers = Headers(lambda _: ['"""x"""'], lambda _, __: ['"""x"""'])
    found = scripted(Failure("wgrad", Outcome.PROTOCOL, "flag set"), case, [first, second], write, run, headers)
    assert (found.fails, found.variant, found.passes) == (TIMES, str(second), TIMES)
