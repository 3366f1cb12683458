"""Which words are gradcheck's own? None of them is anybody's name, whoever is called so."""

from __future__ import annotations

from gradcheck_cli.records.case import ALIASES, AXES
from gradcheck_cli.records.observation import DATA, ROLES
from gradcheck_cli.records.splits import FEWEST_EXPERTS
from gradcheck_cli.records.verdict import Outcome

# Values of axes, what the field says of tensors, the names of the libraries, and the marks themselves.
_FIELD = """
auto legacy native random expanded bf16 fp16 fp32 fp64 module op op_mlp loop grouped_mm case cases slot role
axis axes value values main_grad grad input inputs weight weights tensor matrix output outputs buffer
forward backward expert experts token tokens bound error exact cpu cuda te torch gradcheck python
transformer_engine cublas cublaslt cudnn nccl triton driver nvidia linear GroupedLinear
user host home address variable folder
"""
OWN = frozenset(
    {
        *AXES,
        *ALIASES,
        *(part for axis in AXES for part in axis.split("_")),
        *ROLES,
        *FEWEST_EXPERTS,
        *DATA,
        *(outcome.value for outcome in Outcome),
        *(outcome.value.lower() for outcome in Outcome),
        *_FIELD.split(),
    }
)
