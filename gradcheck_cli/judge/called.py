"""What is done around a layer, and when, in words for `gradcheck show`? None of it changes which gradients are due."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import hooks_of, joined, stepped_after, steps_of
from gradcheck_cli.records.sequence import LEAVES, sequence

RECOMPUTED = {
    "reentrant": "torch.utils.checkpoint(use_reentrant=True)",
    "nonreentrant": "torch.utils.checkpoint(use_reentrant=False)",
    "te": "transformer_engine.pytorch.checkpoint",
}
ASIDE = {"side": "all of it", "backward": "each backward", "backward_dw": "each backward_dw()"}
GRAPHED = {"torch": "torch.cuda.make_graphed_callables", "te": "transformer_engine.pytorch.make_graphed_callables"}
DETERMINED = {
    "te": "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
    "torch": "torch.use_deterministic_algorithms(True) and CUBLAS_WORKSPACE_CONFIG=:4096:8",
}
FILLED = {"zero": "all zero", "large": "a quarter of the largest number of their dtype", "nan": "all NaN"}
OPTIMIZERS = {"sgd": "torch.optim.SGD", "adamw": "torch.optim.AdamW"}
MOVED = {
    "to_dtype": "it is built in fp32, and its parameters have main_grad, before it is brought to its dtype by .to()",
    "load_state_dict": "it holds other weights, and its parameters have main_grad, before load_state_dict()",
}
INFERRED = {"no_grad": "without gradients", "eval": "without gradients, in eval mode"}


def called_in_words(case: Case) -> Iterator[str]:
    """A sentence for each thing that a trainer wraps around the layer."""
    if case.autocast:
        yield f"x is fp32, and each forward runs under torch.autocast of {case.dtype}"
    if case.compile:
        yield "the forward is compiled by torch.compile(backend='aot_eager'), and so is its backward"
    if case.deterministic:
        yield f"determinism is asked for, by {DETERMINED['te' if case.provider == 'te' else 'torch']}"
    if case.repeat > 1:
        yield (
            f"all of it is done {case.repeat} times on the same data, from the build on: each run must be right, and "
            "what is not bit for bit what the first run left is told, two NaN being the same; where determinism is "
            "asked for it is a fault"
        )
    if case.recompute != "none":
        yield f"each forward is run again in its backward, by {RECOMPUTED[case.recompute]}"
    yield from _paired(case)
    if case.moved != "none":
        yield f"the layer is moved at the beginning: {MOVED[case.moved]}; its parameters stay the same objects"
    if case.optimizer != "none":
        yield from _stepped_in_words(case)
    if case.inference != "none":
        yield (
            f"between each forward and its backward another forward is run {INFERRED[case.inference]}, on -x: no "
            "gradient comes from it, and its own output is not judged"
        )
    yield from _on_the_device(case)


def _paired(case: Case) -> Iterator[str]:
    if case.pipelined:
        yield "microbatches go in pairs: two forwards, then the backward of each by itself, the earlier one first"
    if case.retain_graph:
        yield (
            "microbatches go in pairs of one x, one forward and one output: the backward of each goes through the same "
            "graph, which the first one's retains, and x.grad is taken away in between"
        )


def _on_the_device(case: Case) -> Iterator[str]:
    if case.stream != "default":
        yield (
            f"{ASIDE[case.stream]} runs on a CUDA stream of its own, which waits for all before it, and which all "
            "after it waits for"
        )
    if case.cuda_graph != "none":
        yield (
            f"forward and backward are captured for each list of splits before the first microbatch, by "
            f"{GRAPHED[case.cuda_graph]}, and replayed; main_grad has its prefill when the first begins"
        )


def _stepped_in_words(case: Case) -> Iterator[str]:
    fused = case.fuse_wgrad_accumulation
    of = "an fp32 master of each weight, which main_grad is the gradient of" if fused else "each weight"
    ends = [k for k in range(case.microbatches) if stepped_after(case, k)]
    yield (
        f"after microbatch {joined(tuple(ends))} {OPTIMIZERS[case.optimizer]} steps {of}: the weight is then what that "
        "makes of the gradient that was found, bit for bit, a frozen one is as it was, and on integers the weights of "
        "the next microbatch are written over it"
    )
    if case.bias and not case.frozen_bias:
        yield "after each step the biases are negated, in place: the next microbatch adds those"
    zeroed = "main_grad is zeroed, and .grad None" if fused else ".grad is None"
    yield f"after each step {zeroed}: what is said of sums and of a prefill holds from there on without what was before"


def order_in_words(case: Case) -> Iterator[str]:
    """The phases in their order, and what each of them may leave changed."""
    turns = list(sequence(case))
    yield f"in this order: {', '.join(f'{turn.phase} {joined(turn.microbatches)}' for turn in turns)}"
    for phase in dict.fromkeys(turn.phase for turn in turns):
        yield f"{phase} changes {LEAVES[phase]}"


def steps_in_words(case: Case) -> Iterator[str]:
    """What is said of the rows nobody reads, and of when each gradient is there."""
    if case.tail_rows:
        yield (
            f"{case.tail_rows} rows of x and grad_output lie past sum(m_splits), {FILLED[case.padded_tail]}: the "
            f"output and x.grad have rows for them, which nobody reads, and no gradient depends on them"
        )
    if case.tied_weights:
        yield (
            f"tied weights: one backward goes through the outputs of microbatches "
            f"{', one of '.join(map(joined, steps_of(case)))}; after it all of the above holds, of every use"
        )
    if hooks_of(case) and case.frozen_weights != "all":
        yield "each backward hands autograd a gradient of each weight, or a dummy, once: a wrapper reduces in its hooks"
    if case.delay_wgrad_compute:
        times = "once for each use after each backward" if case.tied_weights else "once after each backward"
        yield (
            f"backward_dw() is called {times}: before it every main_grad is bit-unchanged and an "
            "unfused .grad is not judged; after it all of the above holds"
        )
