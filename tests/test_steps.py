"""Is a layer judged rightly over a sequence of steps: with an optimizer in between, and once it was moved?"""

from __future__ import annotations

import pytest
from test_mutants import judged as judged_with_all_mutants

from gradcheck_cli.records.verdict import Outcome

SHAPE = "m_splits=5,0,9,3:in_features=16:out_features=24"
LOOP = f"torch:api=loop:bias=1:{SHAPE}"

RIGHT = [
    *(f"{LOOP}:optimizer={name}:fuse_wgrad={fused}" for name in ("sgd", "adamw") for fused in (0, 1)),
    f"{LOOP}:optimizer=adamw:dtype=fp16",
    f"{LOOP}:optimizer=sgd:dtype=fp32:delay_wgrad_compute=1",
    f"{LOOP}:optimizer=sgd:fuse_wgrad=1:delay_wgrad_compute=1:zero_out_wgrad=1:microbatches=3",
    f"{LOOP}:optimizer=sgd:fuse_wgrad=1:is_first_microbatch=first:microbatches=3",
    f"{LOOP}:optimizer=adamw:fuse_wgrad=1:overwrite_main_grad=some:main_grad_dtype=bf16:microbatches=3",
    f"{LOOP}:optimizer=sgd:tied_weights=1:microbatches=5:dtype=fp32",
    f"{LOOP}:optimizer=adamw:frozen_weights=first",
    f"{LOOP}:optimizer=sgd:fuse_wgrad=1:frozen_weights=last:microbatches=3",
    f"{LOOP}:optimizer=sgd:single_grouped_weight=1:recompute=reentrant:inference=eval",
    f"{LOOP}:optimizer=adamw:autocast=1:moved=load_state_dict:single_grouped_weight=1:fuse_wgrad=1",
    f"{LOOP}:moved=to_dtype:fuse_wgrad=1",
    f"{LOOP}:moved=to_dtype:dtype=fp16:single_grouped_weight=1:delay_wgrad_compute=1",
    f"{LOOP}:moved=load_state_dict:frozen_weights=last:single_grouped_bias=1",
    *(
        f"torch:api=loop:optimizer=sgd:fuse_wgrad=1:recipe={recipe}:m_splits=128,0,64:in_features=128:out_features=128"
        for recipe in ("Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling")
    ),
    "torch:api=grouped_mm:optimizer=adamw:single_grouped_weight=1:m_splits=16,0,32:in_features=16:out_features=24",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_right_layer_passes_and_every_fault_is_seen(text: str) -> None:
    found = judged_with_all_mutants(text)
    assert (found.outcome, found.findings) == (Outcome.PASSED, [])
    assert found.mutants is not None
    assert found.mutants.survived == []
