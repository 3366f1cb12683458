"""What is told of one phase?"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gradcheck_cli.compute.found import Found
from gradcheck_cli.records.observation import Phase


class After(NamedTuple):
    """Everything found after one phase of one microbatch, and the names of what was only lent and is changed.

    `weight` is what a step must have made of the weights, where the next microbatches are multiplied with that.
    """

    microbatch: int
    phase: Phase
    found: list[Found]
    disturbed: list[str]
    called: dict[str, str | int] = {}  # what is told of the call alone, under the names of the axes
    weight: torch.Tensor | None = None
