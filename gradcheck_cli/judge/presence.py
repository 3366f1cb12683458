"""Did the gradient arrive where it must? Missing, untouched, misplaced, unexpected: no tolerance is needed."""

from __future__ import annotations

from collections.abc import Mapping

from gradcheck_cli.judge.bounds import recognised
from gradcheck_cli.judge.called import OPTIMIZERS
from gradcheck_cli.judge.contract import Expected
from gradcheck_cli.judge.judgement import Judgement
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.due import frozen
from gradcheck_cli.records.observation import Buffer, SlotSeen
from gradcheck_cli.records.roles import WEIGHTS
from gradcheck_cli.records.verdict import Outcome

Buffers = Mapping[Buffer, SlotSeen]

NAMES: dict[Buffer, str] = {
    "output": "the output",
    "input.grad": "x.grad",
    "grad": ".grad",
    "main_grad": "main_grad",
    "probs.grad": "probs.grad",
    "weight": "the weight",
}


def absent(case: Case, wanted: Expected, seen: Buffers) -> Judgement | None:
    """MISSING or MISPLACED where the slot's own buffer does not hold the gradient; None where something arrived."""
    own = seen[wanted.buffer]
    where = NAMES[wanted.buffer]
    if not own.present:
        found = f"{where} is None"
    elif wanted.buffer == "main_grad" and own.nonzero_expected and untouched(own) and not rightly(wanted, own):
        found = "main_grad still holds its prefill, bit for bit"
    else:
        return None
    other = elsewhere(case, wanted, seen)
    if other:
        why = f"expected the gradient in {where}; found it in {NAMES[other]}, and {found}"
        return Judgement(outcome=Outcome.MISPLACED, why=why, diagnosis=f"in {NAMES[other]}")
    why = f"expected the gradient in {where}; {found}{_no_gradient_anywhere(wanted, seen)}"
    return Judgement(outcome=Outcome.MISSING, why=why, diagnosis="untouched" if own.present else "none")


def early(wanted: Expected, main_grad: SlotSeen) -> Judgement:
    """UNEXPECTED where main_grad was written by a backward that leaves its wgrad to backward_dw; else PASSED."""
    held = main_grad.contents.get(wanted.content)
    if held is not None and held.compared == wanted.elements and not held.differing:
        return Judgement(outcome=Outcome.PASSED, why="")
    why = "expected main_grad to stay as it was until backward_dw(), bit for bit; found it written, or gone"
    return Judgement(outcome=Outcome.UNEXPECTED, why=why, diagnosis="before backward_dw")


def moved(case: Case, wanted: Expected, weight: SlotSeen) -> Judgement:
    """What is wrong with a weight after the step of an optimizer, bit for bit; PASSED where nothing is."""
    held, stood = weight.contents.get(wanted.content), weight.contents.get("stood")
    if held is not None and held.compared == wanted.elements and not held.differing:
        return Judgement(outcome=Outcome.PASSED, why="")
    if frozen(case, wanted.expert):
        why = "expected the optimizer's step to leave a frozen weight as it was, bit for bit; found it changed"
        return Judgement(outcome=Outcome.UNEXPECTED, why=why, diagnosis="frozen weight moved")
    still = stood is not None and not stood.differing
    found, named = ("it as it was", "weight not moved") if still else ("something else", "weight moved otherwise")
    expected = f"what {OPTIMIZERS[case.optimizer]} makes of it and of its gradient, bit for bit"
    return Judgement(
        outcome=Outcome.PROTOCOL, why=f"expected the weight to be {expected}; found {found}", diagnosis=named
    )


def nothing(case: Case, seen: Buffers) -> Judgement:
    """UNEXPECTED where a frozen parameter or input was given a gradient, in any buffer; else PASSED."""
    found = [NAMES[buffer] for buffer in ("input.grad", "grad") if buffer in seen and seen[buffer].present]
    main_grad = seen.get("main_grad") if case.main_grad == "attached" else None
    if main_grad is not None and (main_grad.replaced or not untouched(main_grad)):
        found.append("main_grad")
    if main_grad is not None and main_grad.added_flag:
        found.append("grad_added_to_main_grad")
    if not found:
        return Judgement(outcome=Outcome.PASSED, why="")
    why = f"expected no gradient, since it is frozen; found {' and '.join(found)} written"
    return Judgement(outcome=Outcome.UNEXPECTED, why=why, diagnosis="frozen")


def rightly(wanted: Expected, main_grad: SlotSeen) -> bool:
    """Whether what main_grad held happens to be what it must hold: one integer, or what is lost in its rounding.

    Of a gradient below half the spacing of a bf16 main_grad nothing is left, however right; integers tell it apart.
    """
    held = main_grad.contents.get(wanted.content)
    if held is None:
        return False
    return held.differing == 0 if held.ratio is None else held.ratio <= 1


def untouched(main_grad: SlotSeen) -> bool:
    """Whether main_grad is bit-equal to its prefill."""
    held = main_grad.contents.get("prefill")
    return held is not None and held.differing == 0


def elsewhere(case: Case, wanted: Expected, seen: Buffers) -> Buffer | None:
    """The other buffer that holds this gradient's right value; None where none does."""
    if wanted.role not in WEIGHTS:
        return None
    other: Buffer = "grad" if wanted.buffer == "main_grad" else "main_grad"
    slot = seen.get(other)
    if slot is None or not slot.contents or not slot.nonzero_expected:
        return None
    content = "sum" if other == "grad" else "prefill+sum"
    if content not in slot.residuals or (other == "main_grad" and untouched(slot)):
        return None
    return other if slot.residuals[content] <= recognised(case.dtype) and not slot.nonfinite else None


def protocol(case: Case, wanted: Expected, seen: Buffers) -> list[Judgement]:
    """PROTOCOL for a wrong shape, dtype, flag or dummy; UNEXPECTED for a buffer that nobody asked to be written."""
    own = seen[wanted.buffer]
    judged = []
    if (own.shape, own.dtype) != (wanted.shape, wanted.dtype):
        why = f"expected {NAMES[wanted.buffer]} {wanted.shape} {wanted.dtype}; found {own.shape} {own.dtype}"
        judged.append(Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="shape or dtype"))
    if wanted.flag is not None and own.added_flag is not wanted.flag:
        why = f"expected grad_added_to_main_grad={wanted.flag}; found {own.added_flag}"
        judged.append(Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="flag not set"))
    called = seen["grad"].hooks if wanted.hooks is not None and "grad" in seen else None
    if called is not None and called != wanted.hooks:
        why = (
            f"expected the backward to hand autograd the weight's gradient, or a dummy, {wanted.hooks} time, for the "
            f"hooks of a data-parallel wrapper; found {called}"
        )
        judged.append(Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="hook not called once"))
    if own.replaced:
        why = "expected the gradient in the main_grad that was attached; found another tensor in its place"
        judged.append(Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="main_grad replaced"))
    if wanted.role in WEIGHTS:
        judged += _dummy(wanted, seen["grad"]) if wanted.buffer == "main_grad" else _bystander(case, seen["main_grad"])
    return judged


def _bystander(case: Case, main_grad: SlotSeen) -> list[Judgement]:
    """What is wrong with a main_grad that no wgrad is to reach."""
    if case.main_grad == "absent":
        return []
    if main_grad.replaced or not untouched(main_grad):
        found = "other memory in its place" if main_grad.replaced else "it written or gone"
        why = f"expected main_grad to keep its prefill (fuse_wgrad_accumulation=0); found {found}"
        return [Judgement(outcome=Outcome.UNEXPECTED, why=why, diagnosis="main_grad written")]
    if main_grad.added_flag:
        # A data-parallel wrapper that reads it drops .grad, and with it the gradient.
        why = "expected grad_added_to_main_grad=False, since main_grad was not written; found True"
        return [Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="flag set")]
    return []


def _dummy(wanted: Expected, grad: SlotSeen) -> list[Judgement]:
    """What is wrong with the .grad beside a fused main_grad.

    A dummy is there for the hooks that autograd calls: of the parameter's shape and dtype, its content nobody's
    business, unless `zero_out_wgrad` asks for zeros. A parameter without `grad_added_to_main_grad` gets none
    (transformer_engine/pytorch/module/grouped_linear.py, `get_dummy_wgrad`).
    """
    if not grad.present:
        return []
    if wanted.dummy == "none":
        why = "expected .grad None, since the parameter has no grad_added_to_main_grad; found one"
        return [Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="dummy")]
    if (grad.shape, grad.dtype) != (wanted.shape, wanted.parameter_dtype):
        why = f"expected .grad None or a dummy {wanted.shape} {wanted.parameter_dtype}; found {grad.shape} {grad.dtype}"
        return [Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="dummy")]
    zero = grad.contents.get("zero")
    if wanted.dummy == "zero" and (zero is None or zero.differing or grad.nonfinite):
        # A hook that adds .grad to main_grad where zero_out_wgrad is set adds whatever is there.
        why = "expected .grad None or exactly 0 (zero_out_wgrad); found other values in it"
        return [Judgement(outcome=Outcome.PROTOCOL, why=why, diagnosis="dummy not zero")]
    return []


def _no_gradient_anywhere(wanted: Expected, seen: Buffers) -> str:
    if wanted.role not in WEIGHTS:
        return ""
    if wanted.buffer == "grad":
        kept = seen["main_grad"].present and untouched(seen["main_grad"])
        return ", and main_grad holds its prefill" if kept else ""
    return ", and .grad is None" if not seen["grad"].present else ", and .grad holds no such gradient"
