"""Which rows of the capability table are about recipes?

Read from `check_recipe_support` in transformer_engine/pytorch/quantization.py, pytorch/ops/op.py, and
`make_grouped_weights` in pytorch/module/grouped_linear.py and in pytorch/ops/basic/grouped_linear.py.
"""

from __future__ import annotations

from gradcheck_cli.records.row import OPS, Row

PADDING = r"(Leading|Outer) dimension requirement on .*GEMM\. Caller must pad"

RECIPE_ROWS = (
    *(
        Row(
            name="recipe-needs-blackwell", provider="te", api=api, since=(2, 9),
            gates=("recipe_device",), says=r"compute capability 10\.0 or higher|not supported on 12\.0\+ architectures",
        )
        for api in ("module", *OPS)
    ),
    *(
        Row(
            name="recipe-needs-fp8", provider="te", api=api, since=(2, 9),
            gates=("recipe_fp8",), says=r"compute capability (8\.9|9\.0) or higher",
        )
        for api in ("module", *OPS)
    ),
    *(
        Row(
            name="recipe-needs-padding", provider="te", api=api, since=(2, 9), on="legacy",
            gates=("recipe_rows", "recipe_columns"), says=PADDING, in_backward=True,
        )
        for api in ("module", "op")
    ),
    Row(
        name="op-has-no-block-scaling", provider="te", api="op", since=(2, 13), before=(2, 18), gates=("recipe_op",),
        says=r"do not support FP8 block scaling recipe", raises="NotImplementedError",
    ),
    *(
        Row(
            name="override-since-2.15", provider="te", api=api, since=(2, 9), before=(2, 15),
            gates=("recipe_override",), says=r"backward_override", raises="TypeError",
        )
        for api in ("module", "op")
    ),
    Row(
        name="module-has-no-block-scaling", provider="te", api="module", since=(2, 18), before=(2, 19),
        path=("native",), on="native", gates=("recipe_blackwell",),
        says=r"does not support the FP8 block-scaling recipe on Blackwell",
    ),
    Row(
        name="original-needs-no-history", provider="te", api="module", since=(2, 9), gates=("recipe_original",),
        says=r"DelayedScaling recipe is not supported with save_original_input", raises="ValueError",
    ),
    # G parameters are registered and nothing is said.
    Row(
        name="module-keeps-weights-apart", provider="te", api="module", since=(2, 14), gates=("recipe_packed",),
        falls_back_on=("single_grouped_weight", "single_grouped_bias"), falls_back_to="0",
    ),
    Row(
        name="op-packs-no-such-weights", provider="te", api="op", since=(2, 14), gates=("recipe_packed",),
        says=r"Delayed scaling (or float8 current scaling )?is not supported with single_grouped_weight=True",
    ),
)  # fmt: skip
