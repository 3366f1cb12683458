"""Which failures are alike? By what is in their diagnoses and messages."""

from __future__ import annotations

import pytest

from gradcheck_cli.records.failure import Failure, failure_of, named
from gradcheck_cli.records.verdict import Finding, Outcome


def raised(message: str, kind: str = "RuntimeError", during: str = "backward of microbatch 0") -> Finding:
    why = f"expected gradients; the candidate raised {kind} in {during}: {message}"
    return Finding(slot="case", outcome=Outcome.RAISED, why=why, diagnosis=kind)


ALIKE = {
    "another expert": ("holds expert 2", "holds expert 13"),
    "another token": ("token 5 of microbatch 0 missing", "token 64 of microbatch 1 missing"),
    "another row": ("rows shifted by 1", "rows shifted by -1"),
    "another tail": ("last 8 of the contraction missing", "last 64 of the contraction missing"),
    "a factor with more digits": ("scaled by 0.3333", "scaled by 0.333"),
    "a form of a known file": ("holds expert 2", "holds expert #"),
}
APART = {
    "another factor": ("scaled by 0.5", "scaled by 3"),
    "another sign": ("scaled by 0.5", "scaled by -0.5"),
    "another exit code": ("exit code 1", "exit code 77"),
    "another signal": ("signal 6 (SIGABRT)", "signal 11 (SIGSEGV)"),
    "another dtype": ("accumulated in bf16", "accumulated in fp16"),
    "none": ("scaled by 0.5", ""),
}


@pytest.mark.parametrize(("one", "other"), ALIKE.values(), ids=ALIKE)
def test_where_in_a_gradient_a_fault_lies_is_no_part_of_it(one: str, other: str) -> None:
    assert named(one) == named(other)


@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART)
def test_factor_exit_code_and_signal_are_part_of_a_fault(one: str, other: str) -> None:
    assert Failure("wgrad", Outcome.INEXACT, one).key != Failure("wgrad", Outcome.INEXACT, other).key


SAID = {
    "its own words": ("grad strides must be nonzero", "grad strides must be nonzero"),
    "sizes and addresses": ("got [64, 128] at 0x7f12", "got [#, #] at #"),
    "the folders of a path": ("/opt/x1/te/gemm.cu:338 in function f: bad", "gemm.cu:# in function f: bad"),
    "a colon of its own": ("a: b", "a: b"),
    "nothing": ("", ""),
}


def test_an_exception_of_another_phase_is_another_fault_and_of_another_microbatch_none() -> None:
    first, second, forward = (
        failure_of(raised("", during=during)).key
        for during in ("backward of microbatch 0, exact data", "backward of microbatch 1, random data", "forward")
    )
    assert (first == second, first == forward) == (True, False)


@pytest.mark.parametrize(("message", "expected"), SAID.values(), ids=SAID)
def test_an_exception_is_known_by_its_phase_and_its_words(message: str, expected: str) -> None:
    said = [failure_of(raised(message, during=during)).said for during in ("build", "backward of microbatch 1, x data")]
    assert said == ([f"build: {expected}", f"backward: {expected}"] if expected else ["", ""])
