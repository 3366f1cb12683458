"""Whose exception is it? One raised while the candidate runs is the candidate's, and becomes its verdict."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch

from gradcheck_cli.compute.provider import Chain, Layer
from gradcheck_cli.records.observation import Raised
from gradcheck_cli.roots import without_roots

# What a candidate says may have any length; records and reports hold it whole only up to this.
LONGEST = 4000  # characters of one text
MOST_WARNINGS = 100

LAYER = "expected a layer, as Layer in gradcheck_cli/compute/provider.py describes it"

# As torch, Transformer Engine (common/util/logging.h), Triton and the libraries beneath them begin what they say.
_OF_CUDA = re.compile(
    r"CUDA (driver )?error|\[CUDA\]|CUDA_ERROR_|cudaError|(CUBLAS|CUDNN)_STATUS_(EXECUTION|INTERNAL|MAPPING|ALLOC)",
    re.IGNORECASE,
)


class CandidateRaised(Exception):
    """The candidate raised; what and where is in `seen`."""

    def __init__(self, seen: Raised) -> None:
        super().__init__(seen.message)
        self.seen = seen


@contextmanager
def on_trial(during: str, device: torch.device, *, captured: bool = False) -> Iterator[None]:
    """Run the candidate: whatever it raises, asynchronous CUDA errors included, leaves as CandidateRaised.

    `captured`: with a CUDA graph. A capture that fails leaves the process as it was in it: Transformer Engine's
    `make_graphed_callables` keeps the class of the module patched and says for ever that something is being captured,
    so that no op's backward updates the scales of DelayedScaling any more (pytorch/graph.py, pytorch/ops/fuser.py).
    """
    try:
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # a candidate may raise anything; no verdict but RAISED or REFUSED can follow
        seen = raised_in(during, error, device, captured=captured)
        _let_go(error)
        raise CandidateRaised(seen) from error


def _let_go(error: BaseException) -> None:
    """End what the frames that it came through hold: whoever keeps the error keeps them.

    A checkpoint that is not reentrant, in whose forward something raises, hooks all saved tensors of the thread until
    its frame is gone, and the backward of a later case would run that forward again (torch/utils/checkpoint.py before
    pytorch PR 184018, which torch 2.13 has).
    """
    for one in chain_of(error):
        traceback.clear_frames(one.__traceback__)


def raised_in(during: str, error: Exception, device: torch.device, *, captured: bool = False) -> Raised:
    """What an exception says, and whether it leaves a device and a process that can be trusted."""
    return Raised(
        type=words(type(error).__name__),
        message=words(error),
        during=during,
        traceback=_traceback(error),
        sticky=not answers(device),
        suspect=device.type == "cuda" and (captured or of_cuda(error)),
    )


def words(said: object) -> str:
    """What an object of the candidate's says of itself, as a record can hold it, even where its __str__ raises."""
    try:
        text = str.__str__(str(said)).strip()  # of a subclass of str, whose own methods may do anything, the text alone
    except Exception as error:  # noqa: BLE001 - never a verdict: that something was said is all that can be told
        text = f"{type(said).__name__}, whose __str__ raises {type(error).__name__}"
    if len(text) <= LONGEST:
        return without_roots(text)
    # More than is kept, so that no path is cut before it has lost its root.
    kept = without_roots(text[: 2 * LONGEST])[:LONGEST].strip()
    return f"{kept} ... (cut here; {len(text)} characters in all)"


def warned(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """What was warned of, each once."""
    said = list(dict.fromkeys(f"{words(one.category.__name__)}: {words(one.message)}" for one in caught))
    left_out = len(said) - MOST_WARNINGS
    return [*said[:MOST_WARNINGS], *([f"... (cut here; {left_out} more warnings)"] if left_out > 0 else [])]


def parameters_of(layer: Layer) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights and biases of what a provider built; TypeError or ValueError where that is no layer."""
    named = ("weights", "biases", "load", "forward", "effective")
    # Asked of the type first: a property that raises is the candidate's to explain.
    absent = [name for name in named if not hasattr(type(layer), name) and not hasattr(layer, name)]
    if absent:
        raise TypeError(f"{LAYER}; found {words(type(layer).__name__)} without {', '.join(absent)}")
    weights, biases = _tensors("weights", layer.weights), _tensors("biases", layer.biases)
    shapes = [tuple(one.shape) for one in weights]
    dimensions = [len(shape) for shape in shapes]
    if dimensions != [3] and set(dimensions) != {2}:
        found = words(shapes) if shapes else "no weight"
        raise ValueError(f"{LAYER}: one packed weight (G, N, K), or G weights (N, K); found {found}")
    return weights, biases


def every_parameter(layer: Layer) -> list[torch.Tensor]:
    """Weights, biases, and the weights of a chain's second layer, in that order."""
    weights, biases = parameters_of(layer)
    return [*weights, *biases, *weights_fc2_of(layer)]


def as_chain(layer: Layer) -> Chain:
    """What a provider built, where a chain was asked for; TypeError where it lacks what a chain must do."""
    absent = [name for name in ("weights_fc2", "load_fc2", "scale_by") if not hasattr(layer, name)]
    if absent:
        what = "expected a chain of two layers, as Chain in gradcheck_cli/compute/provider.py describes it"
        raise TypeError(f"{what}; found {words(type(layer).__name__)} without {', '.join(absent)}")
    return cast("Chain", layer)


def weights_fc2_of(layer: Layer) -> list[torch.Tensor]:
    """The weights of a chain's second layer; none of a single layer. TypeError where they are something else."""
    return _tensors("weights_fc2", getattr(layer, "weights_fc2", ()))


def a_tensor(output: object) -> torch.Tensor:
    """What a forward returned; TypeError where it is something else than one tensor."""
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"expected the output as one tensor; forward returned {words(type(output).__name__)}")
    return output


def _tensors(name: str, held: object) -> list[torch.Tensor]:
    if isinstance(held, torch.Tensor) or not isinstance(held, Iterable):
        raise TypeError(f"{LAYER}: {name} as a sequence of tensors; found {words(type(held).__name__)}")
    listed = list(held)
    others = dict.fromkeys(words(type(one).__name__) for one in listed if not isinstance(one, torch.Tensor))
    if others:
        raise TypeError(f"{LAYER}: {name} as a sequence of tensors; found {', '.join(others)} among them")
    return listed


def _traceback(error: Exception) -> str:
    """Its end, which says where it was raised and last what."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - never a verdict: its cause, its notes or its class may raise when asked
        text = "".join(traceback.format_tb(error.__traceback__))
    return without_roots(text[-2 * LONGEST :])[-LONGEST:]


def answers(device: torch.device) -> bool:
    """Whether the device still answers: a sticky CUDA error fails every later call of the process."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


def of_cuda(error: BaseException) -> bool:
    """Whether an error, or what it came from, is one of CUDA: it may have left anything behind in this process."""
    return any(isinstance(one, torch.OutOfMemoryError) or _OF_CUDA.search(words(one)) for one in chain_of(error))


def chain_of(error: BaseException) -> list[BaseException]:
    """An error and what it came from."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain
