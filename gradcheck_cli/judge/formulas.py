"""What is each gradient, as a formula?"""

from __future__ import annotations

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Role
from gradcheck_cli.records.roles import is_chain

# Of a layer.
LAYER: dict[Role, str] = {"fprop": "x_i w_i^T", "dgrad": "grad_output_i w_i", "wgrad": "grad_output_i^T x_i"}
# Of a chain of two, where dh is the gradient of h.
CHAIN: dict[Role, str] = {
    "fprop": "z_i w2_i^T",
    "dgrad": "dh_i w1_i, where dh is the gradient of h",
    "wgrad": "dh_i^T x_i",
    "wgrad_fc2": "grad_output_i^T z_i",
    "pgrad": "for each token the sum of (grad_output_i w2_i) silu(a_i) b_i",
}


def formulas_of(case: Case) -> dict[Role, str]:
    """The formula of each product of a case."""
    return CHAIN if is_chain(case) else LAYER


def middle(case: Case) -> str:
    """What lies between the layers of a chain, to be said after its output; "" of a single layer."""
    if not is_chain(case):
        return ""
    return ", z_i = probs silu(a_i) b_i, [a_i, b_i] = h_i = x_i w1_i^T; w1 is fc1's, (2 N, K), and w2 fc2's, (K, N)"
