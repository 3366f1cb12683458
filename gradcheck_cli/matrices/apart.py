"""Which combinations do many machines and versions refuse? May be asked, but a case that has one hides all else in it.

What `records/capability.py` says, without a machine: the cases of a matrix are the same on each.
"""

from __future__ import annotations

# Expressions as -k takes them. Several short ones, so that a case may have one of them and none of the others.
APART = (
    # te:api=op asks all weights and biases for the same requires_grad.
    "provider=te and api=op and frozen_weights in (first, last)",
    "provider=te and api=op and bias and frozen_weights=all and not frozen_bias",
    "provider=te and api=op and bias and frozen_weights=none and frozen_bias",
    # Native kernels take 64 groups of what experts have each for themselves.
    "provider=te and (path=native or api=op) and num_gemms > 64 and (bias or not single_grouped_weight)",
    # There is no native path for fp32, and no other for rows past sum(m_splits).
    "provider=te and dtype=fp32 and path=native",
    "provider=te and dtype=fp32 and padded_tail != none",
    # From 2.19 on packed parameters have a native path alone.
    "provider=te and dtype=fp32 and (single_grouped_weight or single_grouped_bias)",
    "provider=te and api=module and path != native and (single_grouped_weight or single_grouped_bias)",
    # From 2.19 on the native path wants splits on the device; up to 2.18 it keeps no original input.
    "provider=te and path=native and m_splits_as in (list, host)",
    "provider=te and path=native and save_original_input",
    # Of recipes that Hopper has, the native path knows one; the op has no GEMM for blocks on any other.
    "provider=te and path=native and recipe in (DelayedScaling, Float8BlockScaling)",
    "provider=te and recipe in (DelayedScaling, Float8BlockScaling) and (single_grouped_weight or single_grouped_bias)",
    "provider=te and api=op and recipe=Float8BlockScaling",
    # te:api=op asks no recipe whether there is an override.
    "provider=te and api=op and backward_override != none",
    # Its kernels read what begins off an aligned address, and then no call of the process succeeds any more.
    "provider=te and (path=native or api in (op, op_mlp)) and dtype != fp32 and grad_output=offset",
    "provider=te and (path=native or api in (op, op_mlp)) and dtype != fp32 and input_layout=offset",
    # cuBLASLt has no GEMM that would write into it.
    "provider=te and main_grad_dtype=bf16 and dtype != bf16",
    # Rows of a transposed matrix that are no multiple of 16 bytes: it has as many columns as there are tokens.
    "api=grouped_mm and (grad_output=transposed or input_layout=transposed) and m_splits not in (balanced, all_empty)",
    "api=grouped_mm and (grad_output=transposed or input_layout=transposed) and m_splits != all_empty "
    "and num_gemms in (1, 2, 65)",
)
