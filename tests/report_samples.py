"""What do reports look like? Verdicts of every outcome, written by hand, as a judge would write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.coverage import coverage, together
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.report import Report, Run, tally
from gradcheck_cli.records.roles import roles_of
from gradcheck_cli.records.verdict import Finding, Margin, Outcome, Verdict

RUN = Run(
    gradcheck="0.1.0",
    command=["gradcheck", "run", "--provider", "te", "-k", "api=module and not dtype=fp32"],
    started="2026-07-01T12:00:00Z",
    matrix="issue-3234",
    provider=["te"],
)
H200 = Environment(
    versions={
        "python": "3.12.3",
        "torch": "2.13.0+cu130",
        "transformer_engine": "2.17.1",
        "cuda": "13.1",
        "driver": "580.95.05",
        "cublaslt": "13.1.0",
        "cudnn": "9.20.0",
    },
    device="cuda:0",
    device_name="NVIDIA H200",
    compute_capability=(9, 0),
    variables={"NVTE_GROUPED_LINEAR_SINGLE_PARAM": "1"},
)

WHY = {
    Outcome.EXCLUDED: "constraint op_has_no_path: path=native is asked of api=module alone",
    Outcome.REFUSED: "expected to run; the candidate refused: grouped GEMM needs cuBLAS 13.4 on sm_90, found 13.1",
    Outcome.VACUOUS: "expected a comparison that can fail; found 99% of the 6144 reference elements to be 0",
    Outcome.UNTESTED: "expected a judged slot; found that no phase delivered it",
    Outcome.NONDETERMINISTIC: "expected the same bits twice; found 17 of 6144 elements differ",
    Outcome.PROTOCOL: "expected grad_added_to_main_grad=True after backward; found False",
    Outcome.INACCURATE: "expected an error of at most 1 bound; found 3.7 at [5, 11]: 0.51 instead of 0.48",
    Outcome.INEXACT: "expected 12 at [5, 11], bit for bit; found 24; 6144 of 6144 elements differ",
    Outcome.UNEXPECTED: "expected no gradient for a bias that is not there; found .grad of shape (96,)",
    Outcome.NONFINITE: "expected finite numbers; found 3 NaN or infinite of 6144",
    Outcome.MISPLACED: "expected wgrad in main_grad; found it in .grad",
    Outcome.MISSING: "expected main_grad = prefill + wgrad; found the prefill, bit for bit: nothing was added",
    Outcome.RAISED: "expected a backward; found RuntimeError: a | pipe, `ticks` and\nstrides (0, 0) <not> supported",
    Outcome.TIMED_OUT: "expected an answer within 60 s; found none; the worker was stopped",
    Outcome.CRASHED: "expected a result; found signal 11 (SIGSEGV); last output: \x1b[31mbad\x1b[0m \x00\x07memory",
    Outcome.NOT_THE_CASE: "expected single_grouped_weight=1 to run; found 0",
}
CASE_WIDE = {
    Outcome.EXCLUDED,
    Outcome.REFUSED,
    Outcome.RAISED,
    Outcome.TIMED_OUT,
    Outcome.CRASHED,
    Outcome.NOT_THE_CASE,
}
DIAGNOSES = {Outcome.MISSING: "untouched", Outcome.INEXACT: "doubled"}


def verdict(case: str | Case, outcome: Outcome = Outcome.PASSED, **more: Any) -> Verdict:
    """A verdict on a case whose wgrad is at fault, or the whole case where the outcome says so."""
    case = Case.parse(case) if isinstance(case, str) else case
    roles = roles_of(case)
    executed = outcome not in CASE_WIDE
    said: dict[str, Any] = {
        "case": str(case),
        "axes": case.axes(),
        "outcome": outcome,
        "findings": [] if outcome is Outcome.PASSED else [finding(outcome)],
        "roles": dict.fromkeys(roles, Outcome.PASSED) | {"wgrad": outcome} if executed else {},
        "margins": {"fprop": Margin(slot="fprop[1]", ratio=0.97, after_rounding=0.31)} if executed else {},
        "effective": {"path": "legacy"} if executed and case.api == "module" else {},
        "channels": {"exact": "judged", "normal": "judged"} if executed else {},
        "seconds": 0.125,
    }
    return Verdict(**said | more)


def finding(outcome: Outcome, why: str | None = None) -> Finding:
    """The finding behind an outcome."""
    return Finding(
        slot="case" if outcome in CASE_WIDE else "wgrad[3]",
        outcome=outcome,
        why=WHY[outcome] if why is None else why,
        diagnosis=DIAGNOSES.get(outcome, ""),
        ratio=3.7 if outcome is Outcome.INACCURATE else None,
        unlock="cuBLAS 13.4 or newer" if outcome is Outcome.REFUSED else "",
    )


def report(verdicts: Iterable[Verdict], *, exit_code: int = 0, **run: Any) -> Report:
    """A finished run with these verdicts."""
    listed = list(verdicts)
    asked = Run(**{name: getattr(RUN, name) for name in Run.__struct_fields__} | run)
    return Report(
        run=asked,
        environment=H200,
        tally=tally(listed),
        coverage=coverage(listed),
        pairs=together(listed),
        verdicts=listed,
        seconds=12.5,
        exit_code=exit_code,
    )


def seed() -> Report:
    """The seed's twelve cells on a Transformer Engine that forgets the module's single grouped weight."""
    cells = []
    for api in ("module", "op"):
        for dtype in ("bf16", "fp32"):
            for single in (False, True) if api == "module" else (True,):
                for fuse in (False, True):
                    case = Case(
                        provider="te",
                        api=api,
                        single_grouped_weight=single,
                        fuse_wgrad_accumulation=fuse,
                        dtype=dtype,
                        num_gemms=2,
                    )
                    lost = single and api == "module"
                    cells.append(verdict(case, Outcome.MISSING if lost else Outcome.PASSED))
    return report(cells, exit_code=1)


def every_outcome() -> Report:
    """One case of each outcome."""
    cases = [Case(provider="te", api="module", path="native", seed=i) for i in range(len(Outcome))]
    return report([verdict(case, outcome) for case, outcome in zip(cases, Outcome, strict=True)], exit_code=1)


def many(count: int = 1500) -> Report:
    """A full matrix with long ids, two providers, bias, and one refusal, one miss and one exclusion in each twelve."""
    outcomes = {3: Outcome.MISSING, 5: Outcome.REFUSED, 7: Outcome.EXCLUDED}
    cases = [
        Case(
            provider="te" if i % 2 else "torch",
            api="module" if i % 2 else "grouped_mm",
            single_grouped_weight=i % 3 == 0,
            fuse_wgrad_accumulation=i % 5 == 0,
            dtype=("bf16", "fp16", "fp32")[i % 3],
            bias=i % 7 == 0,
            m_splits=",".join(str(i + j) for j in range(16)),
            num_gemms=16,
            seed=i,
        )
        for i in range(count)
    ]
    return report([verdict(case, outcomes.get(i % 12, Outcome.PASSED)) for i, case in enumerate(cases)], exit_code=1)


OBSERVATION = Observation(case="te:api=module", ending="finished", effective={"path": "legacy"})
