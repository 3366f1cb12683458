"""What did the candidate leave where? Each phase of a case in its order, and after it every buffer: facts only."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.compute.after import After
from gradcheck_cli.compute.inputs import Inputs
from gradcheck_cli.compute.kernels import Watch, unwatched
from gradcheck_cli.compute.provider import Layer
from gradcheck_cli.compute.trainer import Trainer
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.observation import Fill
from gradcheck_cli.records.sequence import sequence


def observe(case: Case, layer: Layer, inputs: Inputs, fill: Fill, watch: Watch = unwatched) -> Iterator[After]:
    """Run all phases of all microbatches, and yield what is there after each.

    The weights are loaded first, and get what the case says of main_grad, fused or not. Nothing is cleared between
    microbatches but by the step of an optimizer, after which the weights are told. Of a backward through two, all but
    x.grad is told with the last. Ends early at an output that no gradient fits. Raises CandidateRaised, also where its
    parameters and buffers cannot be read.
    """
    trainer = Trainer(case, layer, inputs, fill, watch)
    for turn in sequence(case):
        yield from trainer.take(turn)
        if not trainer.fits:
            return
