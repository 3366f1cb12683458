"""How does the module behave, version by version? `transformer_engine.pytorch.GroupedLinear`."""

from __future__ import annotations

import os
from typing import Any

import torch

from transformer_engine.pytorch import gates
from transformer_engine.pytorch.gemm import Call, GroupedGemm
from transformer_engine.pytorch.grouped_tensor import Layer, one_weight, packed, split
from transformer_engine.pytorch.quantization import notes, quantiser_of, spoil

_SWITCH = "NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM"


class _Module(Layer):
    """What all versions share. Keywords only: positions differ between versions."""

    NOTE = "use_grouped_tensor_path"

    def _make(self, sizes: tuple[int, int, int], dtype: torch.dtype, device: Any, options: dict[str, Any]) -> None:
        experts, columns, rows = sizes
        self.num_gemms = experts
        self.fuse_wgrad_accumulation = options["fuse_wgrad_accumulation"]
        self.use_bias = options["bias"]
        self.single_grouped_weight = gates.single_weight(options["single_grouped_weight"])
        is_packed = self.single_grouped_weight and gates.module_packs()
        if is_packed:
            self.register_parameter("weight", packed(experts, rows, columns, dtype, device))
        for i in range(experts):
            self.register_parameter(f"weight{i}", None if is_packed else one_weight(rows, columns, dtype, device))
            bias = torch.zeros(rows if self.use_bias else 0, dtype=dtype, device=device)
            setattr(self, f"bias{i}", torch.nn.Parameter(bias) if self.use_bias else bias)

    def _compute(self, x: torch.Tensor, splits: list[int], *, native: bool) -> torch.Tensor:
        if native:
            gates.check_grouped_gemm()
        biases = [getattr(self, f"bias{i}") for i in range(self.num_gemms)] if self.use_bias else []
        owners = self._owners()
        call = Call(
            splits=splits,
            members=self._members(),
            weights=self._multiplied(self._members()),
            biases=[bias.detach() for bias in biases],
            owners=owners,
            fused=self.fuse_wgrad_accumulation,
            native=native,
            quantiser=quantiser_of(self),
            notes={self.NOTE: native, **notes("fp8")},
        )
        y: torch.Tensor = GroupedGemm.apply(call, x, *self._seen_by_autograd(owners), *biases)  # type: ignore[no-untyped-call]
        spoil(owners[0])
        return y

    def _members(self) -> list[torch.Tensor]:
        if hasattr(self, "weight"):
            packed_weight: Any = self.weight
            return split(packed_weight)
        return [getattr(self, f"weight{i}") for i in range(self.num_gemms)]

    def _owners(self) -> list[torch.nn.Parameter]:
        names = ["weight"] if hasattr(self, "weight") else [f"weight{i}" for i in range(self.num_gemms)]
        return [self.get_parameter(name) for name in names]

    def _seen_by_autograd(self, owners: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        return list(owners)


class _Until218(_Module):
    """2.14 to 2.18: the native path has an environment variable for a switch, and the packed weight no wgrad."""

    def __init__(  # noqa: PLR0913
        self,
        *,
        num_gemms: int,
        in_features: int,
        out_features: int,
        fuse_wgrad_accumulation: bool = False,
        bias: bool = True,
        params_dtype: torch.dtype = torch.float32,
        device: Any = "cuda",
        single_grouped_weight: bool = False,
    ) -> None:
        super().__init__()
        options = {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "bias": bias,
            "single_grouped_weight": single_grouped_weight,
        }
        self._make((num_gemms, in_features, out_features), params_dtype, device, options)

    def forward(self, inp: torch.Tensor, m_splits: Any, *, is_first_microbatch: bool | None = None) -> torch.Tensor:
        """Splits as a list; from 2.17 on also as a tensor."""
        assert is_first_microbatch is None, "the stand-in knows no other microbatch"
        if isinstance(m_splits, torch.Tensor):
            if gates.VERSION < (2, 17):
                raise TypeError("split() received a Tensor where a list of ints is needed")
            m_splits = m_splits.tolist()
        if len(m_splits) != self.num_gemms:
            raise ValueError(f"Number of splits ({len(m_splits)}) does not match number of GEMMs ({self.num_gemms}).")
        asked = bool(int(os.environ.get(_SWITCH, "0")))
        native = gates.module_goes_native(asked=asked, dtype=inp.dtype)
        return self._compute(inp, m_splits, native=native)

    def _seen_by_autograd(self, owners: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        # The reported bug: of a packed weight autograd sees detached members, so that no wgrad is asked for.
        return self._members() if self.single_grouped_weight else list(owners)


class _Since219(_Module):
    """2.19 and later: an argument for a switch; the packed weight is right on the native path and refused elsewhere."""

    NOTE = "grouped_tensor_supported"

    def __init__(  # noqa: PLR0913
        self,
        *,
        num_gemms: int,
        in_features: int,
        out_features: int,
        fuse_wgrad_accumulation: bool = False,
        bias: bool = True,
        params_dtype: torch.dtype = torch.float32,
        device: Any = "cuda",
        single_grouped_weight: bool = False,
        use_grouped_tensor: bool | None = None,
    ) -> None:
        super().__init__()
        if use_grouped_tensor is None:
            use_grouped_tensor = bool(int(os.environ.get(_SWITCH, "0")))
        self.use_grouped_tensor = use_grouped_tensor
        options = {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "bias": bias,
            "single_grouped_weight": single_grouped_weight,
        }
        self._make((num_gemms, in_features, out_features), params_dtype, device, options)

    def forward(self, inp: torch.Tensor, m_splits: Any, *, is_first_microbatch: bool | None = None) -> torch.Tensor:
        """Splits as a list or a tensor; on the native path only as a tensor of the device."""
        assert is_first_microbatch is None, "the stand-in knows no other microbatch"
        if self.single_grouped_weight and not self.use_grouped_tensor:
            raise RuntimeError("single_grouped_weight and single_grouped_bias require use_grouped_tensor=True")
        native = gates.module_goes_native(asked=self.use_grouped_tensor, dtype=inp.dtype)
        if self.single_grouped_weight and not native:
            raise RuntimeError(
                "Single grouped parameters require the native grouped-tensor path, which is not supported here."
            )
        # On the CPU every tensor is a host tensor: the stand-in can only tell tensors from lists.
        if native and not isinstance(m_splits, torch.Tensor):
            raise ValueError("The native grouped_tensor path requires CUDA m_splits.")
        splits = m_splits.tolist() if isinstance(m_splits, torch.Tensor) else m_splits
        return self._compute(inp, splits, native=native)


GroupedLinear: Any = _Since219 if gates.VERSION >= (2, 19) else _Until218
