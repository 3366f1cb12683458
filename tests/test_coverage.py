"""Does a run say how much of each axis value it executed?"""

from __future__ import annotations

import msgspec

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.coverage import Covered, Pairs, coverage, together
from gradcheck_cli.records.verdict import Outcome, Verdict
from gradcheck_cli.reporters.summary import gaps, paired


def of(text: str, outcome: Outcome) -> Verdict:
    case = Case.parse(text)
    return Verdict(case=str(case), axes=case.axes(), outcome=outcome)


RUN = [
    of("torch:api=loop", Outcome.PASSED),
    of("torch:api=loop:dtype=fp16", Outcome.REFUSED),
    of("torch:api=loop:dtype=fp16:bias=1", Outcome.INEXACT),
    of("torch:api=loop:dtype=fp32:bias=1", Outcome.REFUSED),
    of("torch:api=loop:dtype=fp32:path=native", Outcome.EXCLUDED),
]


def test_every_value_of_an_axis_that_varies_is_counted_without_what_was_not_asked() -> None:
    assert [(one.axis, one.value, one.executed, one.asked) for one in coverage(RUN)] == [
        ("dtype", "bf16", 1, 1),
        ("dtype", "fp16", 1, 2),
        ("dtype", "fp32", 0, 1),
        ("bias", 0, 1, 2),
        ("bias", 1, 1, 2),
    ]


def test_what_was_hardly_executed_is_told_the_least_first() -> None:
    assert gaps(coverage(RUN)) == "hardly executed: dtype=fp32 0 of 1"
    assert gaps(coverage([one for one in RUN if one.outcome is not Outcome.REFUSED])) == ""
    many = [Covered(axis="seed", value=i, asked=9, executed=i % 2) for i in range(12)]
    told = gaps(many)
    assert told.startswith("hardly executed: seed=0 0 of 9 · seed=2 0 of 9")
    assert told.endswith("4 more values in report.json")


def test_every_two_values_of_a_layer_are_counted_once_and_executed_where_one_case_was() -> None:
    assert together(RUN) == Pairs(asked=4, executed=2)  # of dtype and bias: bf16 0, fp16 0, fp16 1, fp32 1
    other = [msgspec.structs.replace(one, axes=one.axes | {"api": "grouped_mm"}) for one in RUN[:3]]
    assert together([*RUN, *other, *RUN]) == Pairs(asked=4 + 3, executed=2 + 2)
    said = "values that stand together in a case: 1,999 of 2,000 pairs executed (99%)"
    assert paired(Pairs(asked=2000, executed=1999)) == said
    assert paired(Pairs(asked=2000, executed=2000)) == paired(Pairs()) == ""


def test_a_run_of_an_older_gradcheck_without_an_axis_is_counted_by_those_it_has() -> None:
    older = [msgspec.structs.replace(one, axes={"dtype": one.axes["dtype"]}) for one in RUN]
    assert {one.axis for one in coverage(older)} == {"dtype"}
