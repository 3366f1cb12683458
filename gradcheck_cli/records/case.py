"""What is one point of the matrix? A case: its text is its id and its reproducer."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from gradcheck_cli.records import called, splits
from gradcheck_cli.records.base import Record
from gradcheck_cli.records.dtype import DtypeName, RecipeName
from gradcheck_cli.records.excerpt import shortened

NAME = rf"^[a-z][a-z0-9_]*{splits.END}"
Name = Annotated[str, Meta(pattern=NAME)]
# A size beyond these is a slip of the pen: one tensor of it would not fit into any machine.
Count = Annotated[int, Meta(ge=1, le=1 << 20)]

ALIASES = {"fuse_wgrad": "fuse_wgrad_accumulation"}


class Case(Record, frozen=True, kw_only=True):
    """One configuration of one grouped linear layer, y_i = x_i w_i^T (+ b_i) for each expert i, or of a chain of two.

    The fields are the axes, with their defaults, in the order in which an id names them. Adding an axis is
    adding a field; its default must mean what every older case meant.
    """

    provider: Annotated[Name, Meta(description="what builds the layer on trial")]
    api: Annotated[Name, Meta(description="the provider's entry point: module, op, grouped_mm, loop, ...")]
    path: Annotated[
        Literal["auto", "legacy", "native", "cutlass"],
        Meta(
            description="GEMM path asked of te:api=module, or that te:api=op is to take by itself; cutlass: legacy, by "
            "another grouped GEMM; auto: as it likes"
        ),
    ] = "auto"
    single_grouped_weight: Annotated[bool, Meta(description="one packed (G, N, K) parameter")] = False
    fuse_wgrad_accumulation: Annotated[bool, Meta(description="wgrad accumulates into main_grad")] = False
    main_grad: Annotated[
        Literal["attached", "absent"], Meta(description="whether the weights have one; it is prefilled")
    ] = "attached"
    main_grad_dtype: Annotated[Literal["fp32", "bf16"], Meta(description="of main_grad")] = "fp32"
    grad_added_to_main_grad: Annotated[
        Literal["attached", "absent"], Meta(description="whether the weights have that attribute; attached it is False")
    ] = "attached"
    overwrite_main_grad: Annotated[
        Literal["none", "all", "some"], Meta(description="weights whose wgrad replaces what main_grad holds")
    ] = "none"
    zero_out_wgrad: Annotated[bool, Meta(description="a dummy left in .grad must be zero")] = False
    is_first_microbatch: Annotated[
        Literal["unset", "first"], Meta(description="given to every call: True to the first, False to the others")
    ] = "unset"
    delay_wgrad_compute: Annotated[bool, Meta(description="wgrad is computed by backward_dw()")] = False
    tied_weights: Annotated[
        bool, Meta(description="microbatches go in pairs: two forwards, then one backward through both outputs")
    ] = False
    pipelined: called.Pipelined = False
    retain_graph: Annotated[
        bool,
        Meta(description="microbatches go in pairs: one forward, and through its retained graph the backward of each"),
    ] = False
    frozen_weights: Annotated[
        Literal["none", "all", "first", "last"], Meta(description="weights that ask for no gradient")
    ] = "none"
    frozen_input: Annotated[bool, Meta(description="x asks for no gradient")] = False
    frozen_bias: Annotated[bool, Meta(description="the biases ask for no gradient")] = False
    recompute: called.Recompute = "none"
    inference: called.Inference = "none"
    stream: called.Stream = "default"
    cuda_graph: called.CudaGraph = "none"
    autocast: called.Autocast = False
    compile: called.Compile = False
    optimizer: called.Optimizer = "none"
    moved: called.Moved = "none"
    deterministic: called.Deterministic = False
    repeat: called.Repeat = 1
    dtype: Annotated[DtypeName, Meta(description="of parameters and activations")] = "bf16"
    recipe: Annotated[RecipeName, Meta(description="how x, weights and grad_output are quantised for each GEMM")] = (
        "none"
    )
    backward_override: Annotated[
        Literal["none", "high_precision", "dequantized"],
        Meta(description="what a recipe's backward multiplies: all quantised, all as given, or x and w dequantised"),
    ] = "none"
    quantized_model_init: Annotated[
        bool, Meta(description="weights are kept as the recipe quantises them, once, and not in the case's dtype")
    ] = False
    bias: bool = False
    single_grouped_bias: Annotated[bool, Meta(description="one packed (G, N) bias")] = False
    return_bias: Annotated[bool, Meta(description="the layer returns its biases, and the trainer adds them")] = False
    save_original_input: Annotated[bool, Meta(description="te:api=module keeps x itself for its backward")] = False
    m_splits: Annotated[
        str, Meta(pattern=splits.PATTERN, description="tokens per expert: a named pattern, or a list")
    ] = "balanced"
    m_splits_as: Annotated[
        Literal["auto", "list", "host", "device"],
        Meta(description="given as a list, an int64 tensor on the host or one on the device; auto: as the path needs"),
    ] = "auto"
    padded_tail: Annotated[
        Literal["none", "zero", "large", "nan"],
        Meta(description="rows past sum(m_splits) in x and grad_output, and what is in them"),
    ] = "none"
    num_gemms: Annotated[Count, Meta(description="G, the number of experts")] = 4
    tokens_per_expert: Annotated[Count, Meta(description="mean size of a named m_splits pattern")] = 32
    in_features: Annotated[Count, Meta(description="K")] = 64
    out_features: Annotated[Count, Meta(description="N")] = 96
    microbatches: Annotated[int, Meta(ge=1, le=16)] = 2
    grad_output: Annotated[
        Literal["random", "expanded", "transposed", "offset"],
        Meta(
            description="random: contiguous; expanded: the ones of `.sum().backward()`, with strides 0; transposed: a "
            "view of (N, T); offset: beginning one element past an aligned address"
        ),
    ] = "random"
    input_layout: Annotated[
        Literal["contiguous", "transposed", "offset"], Meta(description="how x lies in memory, as with grad_output")
    ] = "contiguous"
    seed: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        named = self.m_splits.count(",") + 1
        if self.explicit_splits and named != self.num_gemms:
            said = shortened(self.m_splits)
            raise ValueError(f"m_splits={said} names {named} experts, num_gemms={self.num_gemms}")

    @property
    def explicit_splits(self) -> bool:
        """Whether m_splits is a list, which then also fixes num_gemms."""
        return self.m_splits not in splits.FEWEST_EXPERTS

    def splits(self, microbatch: int = 0) -> tuple[int, ...]:
        """Tokens per expert of one microbatch."""
        first = splits.expand(self.m_splits, self.num_gemms, self.tokens_per_expert)
        multiple = 1 if self.recipe == "none" else splits.alignment(first)
        return splits.of_microbatch(first, microbatch - microbatch % 2 * self.retain_graph, multiple)

    @property
    def tail_rows(self) -> int:
        """Rows of x and grad_output past sum(m_splits)."""
        return 0 if self.padded_tail == "none" else splits.TAIL

    def rows(self, microbatch: int = 0) -> int:
        """Rows of x, the output and their gradients in one microbatch, a padded tail included."""
        return sum(self.splits(microbatch)) + self.tail_rows

    def axes(self) -> dict[str, str | int]:
        """Every axis by name, defaults included; booleans as 0 and 1."""
        return {name: _plain(getattr(self, name)) for name in self.__struct_fields__}

    def __str__(self) -> str:
        named = [self.provider, f"api={self.api}"]
        for field in _fields()[len(LAYER) :]:
            value = getattr(self, field.name)
            implied = field.name == "num_gemms" and self.explicit_splits
            if value != field.default and not implied:
                named.append(f"{field.name}={_plain(value)}")
        return ":".join(named)

    @classmethod
    def of(cls, axes: dict[str, Any]) -> Case:
        """A case from axis values as text or plain values; ValueError says which value is wrong and what is allowed."""
        known = {field.name: field for field in _fields()}
        values: dict[str, Any] = {}
        for name, value in axes.items():
            name = ALIASES.get(name, name)
            if name not in known:
                raise ValueError(f"unknown axis {shortened(repr(name))}; the axes are: {', '.join(known)}")
            values[name] = axis_value(name, value)
        for name in LAYER:
            if name not in values:
                raise ValueError(f"a case needs its {name}")
        text = values.get("m_splits", "balanced")
        if text not in splits.FEWEST_EXPERTS:
            values.setdefault("num_gemms", len(text.split(",")))
        return cls(**values)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read an id back: `Case.parse(str(case)) == case`. ValueError where it is not one."""
        provider, *rest = text.strip().split(":")
        axes: dict[str, Any] = {"provider": provider}
        for part in rest:
            name, separator, value = part.partition("=")
            name = ALIASES.get(name, name)
            if not separator:
                raise ValueError(f"{shortened(repr(part))} in {shortened(repr(text))} is not name=value")
            if name in axes:
                raise ValueError(f"{shortened(name)} stands twice in {shortened(repr(text))}")
            axes[name] = value
        return cls.of(axes)


AXES: tuple[str, ...] = Case.__struct_fields__
LAYER = ("provider", "api")  # the first axes, which every id names


@functools.cache
def _fields() -> tuple[FieldInfo, ...]:
    # msgspec resolves all annotations at each call, which costs more than everything else in an id.
    return msgspec.structs.fields(Case)


def axis_value(name: str, value: Any) -> Any:
    """One axis value, checked and in its own type; ValueError names the axis, the value and what is allowed."""
    field = next(field for field in _fields() if field.name == name)
    if isinstance(value, list):
        value = ",".join(str(item) for item in value)
    try:
        return msgspec.convert(value, field.type, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{name}={shortened(value)}: expected {allowed_values(name)}") from None


def allowed_values(name: str) -> str:
    """What an axis may be, in words."""
    if name == "m_splits":
        return f"{', '.join(splits.FEWEST_EXPERTS)}, or a list such as 64,0,128"
    field = next(field for field in _fields() if field.name == name)
    schema = msgspec.json.schema(field.type)
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "boolean":
        return "0 or 1"
    if "minimum" in schema:
        upper = f" to {schema['maximum']}" if "maximum" in schema else " or more"
        return f"a whole number, {schema['minimum']}{upper}"
    return "a name in lower case"


def _plain(value: Any) -> str | int:
    return int(value) if isinstance(value, bool) else value


# What an axis that a case does not name is; the layer has none. A record without an axis, of before there was one, has
# it as well.
DEFAULTS: dict[str, str | int] = {field.name: _plain(field.default) for field in _fields()[len(LAYER) :]}
