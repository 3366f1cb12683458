"""How near do right gradients come to their bounds, and is one ever called wrong? Random cases, judged as in a run.

    python benchmarks/calibrate.py --cases 2000 --seed 0 --provider torch --device cpu --output torch.json
    python benchmarks/calibrate.py --merge one.json other.json --output both.json --table

Counts, histograms and maxima of merged files are exact; their other quantiles are upper edges of histogram bins.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from gradcheck_cli import pipeline, plugins
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.judge.contract import expected
from gradcheck_cli.judge.slots import buffers
from gradcheck_cli.matrices import matrix
from gradcheck_cli.records.base import Record, from_json, to_json
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.dtype import RecipeName
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation
from gradcheck_cli.records.roles import CHAIN
from gradcheck_cli.records.splits import FEWEST_EXPERTS
from gradcheck_cli.records.verdict import Finding, Outcome

BINS = 40
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
SHOWN, WIDTH = ("0.5", "0.99", "1.0"), 160  # of the table: quantiles, characters
# Figure -> where its last bin ends, which is where a gradient becomes wrong; what lies beyond is counted as `above`.
FIGURES = {"ratio": 1.0, "after_rounding": 1.0, "smallest_lambda": 4.0}
# Its backward refuses strides of 0: nothing would be learnt of its rounding.
TAKES_NO_EXPANDED = {("torch", "grouped_mm")}
# What says something of rounding: the others hold no gradient, or another one.
ROUNDS = (Outcome.PASSED, Outcome.INACCURATE)
LARGE = (1024, 1536, 2048)  # one size in TAIL is one of these
TAIL = 50
# Elements of all wgrads of all microbatches: larger cases take much longer, and show no more slots than small ones.
MOST_ELEMENTS = 1 << 17
# What FP8 tensor cores run on Hopper, and what tokens and features are multiples of there.
RECIPES: tuple[RecipeName, ...] = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling")
ROWS, BLOCK = 16, 128

Values = dict[str, dict[str, list[float]]]  # class -> figure -> its value in every slot


class Spread(Record, frozen=True, kw_only=True):
    """How one figure is distributed over the slots of a class."""

    count: int
    quantiles: dict[str, float]
    from_values: bool  # otherwise the quantiles, but for the largest, are upper edges of bins
    top: float  # where the last bin ends
    histogram: list[int]  # BINS bins of equal width from 0 to top
    above: int


class Alarm(Record, frozen=True, kw_only=True):
    """A case that neither passed nor was refused."""

    case: str
    outcome: Outcome
    findings: list[Finding]


class Calibration(Record, frozen=True, kw_only=True):
    """What was found on one or several shards."""

    asked: list[str]  # the options of each shard
    environments: list[Environment]
    seconds: float
    cases: int
    outcomes: dict[str, int]
    alarms: list[Alarm]
    classes: dict[str, dict[str, Spread]]  # dtype role fused|unfused grad_output -> figure -> its distribution


def cases(
    provider: str, count: int, seed: int, *, chain: bool = False, expanded: bool = False, recipes: bool = False
) -> list[Case]:
    """As many random cases, the same for the same seed: single layers, or the chain, one grad_output, or quantised."""
    drawn = random.Random(seed)  # noqa: S311  nothing is kept secret
    apis = [api for api in plugins.candidate(provider).apis if (api == CHAIN) is chain]
    if recipes:
        return [random_quantised(drawn, provider, apis) for _ in range(count)]
    return [random_case(drawn, provider, apis, expanded=expanded) for _ in range(count)]


def random_case(drawn: random.Random, provider: str, apis: list[str], *, expanded: bool) -> Case:
    """One point anywhere in the matrix of a provider, or where grad_output is expanded, among those that are quick."""
    while True:
        case = any_case(drawn, provider, apis)
        if expanded and case.grad_output != "expanded":
            continue
        if weights(case) <= MOST_ELEMENTS:
            return case


def random_quantised(drawn: random.Random, provider: str, apis: list[str]) -> Case:
    """One random case under a recipe, its sizes multiples of 16 and on every other of them of 128."""
    while True:
        case, multiple = any_case(drawn, provider, apis), drawn.choice([ROWS, BLOCK])
        axes = {"recipe": drawn.choice(RECIPES), "num_gemms": size(drawn, 8)}
        # The op reads no override, and is another case with one.
        overrides = ["none"] if case.api == "op" else ["none"] * 4 + ["high_precision", "dequantized"]
        axes["backward_override"] = drawn.choice(overrides)
        splits = [
            0 if drawn.random() < 1 / 4 else multiple * size(drawn, 512 // multiple) for _ in range(axes["num_gemms"])
        ]
        sizes = {name: -(-getattr(case, name) // ROWS) * ROWS for name in ("in_features", "out_features")}
        case = Case.of({**case.axes(), **axes, **sizes, "m_splits": splits})
        if matrix.excluded(case) is None and any(splits) and weights(case) <= MOST_ELEMENTS:
            return case


def weights(case: Case) -> int:
    """Elements of all wgrads of all microbatches."""
    return case.num_gemms * case.in_features * case.out_features * case.microbatches


def any_case(drawn: random.Random, provider: str, apis: list[str]) -> Case:
    """One point anywhere in the matrix of a provider."""
    api = drawn.choice(apis)
    axes: dict[str, Any] = {"provider": provider, "api": api}
    if (provider, api) == ("te", "module"):
        axes["path"] = drawn.choice(["legacy", "native"])
    if (provider, api) not in TAKES_NO_EXPANDED and drawn.random() < 1 / 4:
        axes["grad_output"] = "expanded"
    for name in ("single_grouped_weight", "fuse_wgrad_accumulation", "bias"):
        axes[name] = drawn.random() < 1 / 2
    axes["bias"] = axes["bias"] and api != CHAIN
    axes |= {"dtype": drawn.choice(["bf16", "fp16", "fp32"]), **tokens(drawn)}
    axes |= {"in_features": features(drawn), "out_features": features(drawn)}
    return Case.of(axes | {"microbatches": size(drawn, 4), "seed": drawn.randrange(1 << 31)})


def tokens(drawn: random.Random) -> dict[str, Any]:
    """A named pattern of m_splits, or a list of which a third is empty; all sizes up to 200 on a logarithmic scale."""
    experts = size(drawn, 8)
    named = drawn.choice([name for name, fewest in FEWEST_EXPERTS.items() if fewest <= experts] + ["list"] * 3)
    if named != "list":
        return {"m_splits": named, "num_gemms": experts, "tokens_per_expert": size(drawn, 200)}
    return {"m_splits": [0 if drawn.random() < 1 / 3 else size(drawn, 200) for _ in range(experts)]}


def features(drawn: random.Random) -> int:
    """A multiple of 8 up to 512, now and then a larger one."""
    return drawn.choice(LARGE) if drawn.random() < 1 / TAIL else 8 * size(drawn, 64)


def size(drawn: random.Random, largest: int) -> int:
    """1 to largest, small ones as often as large ones: log-uniform."""
    return min(int((largest + 1) ** drawn.random()), largest)


def measured(options: argparse.Namespace) -> Calibration:
    """Run one shard of the cases in this process."""
    from gradcheck_cli.compute import quantised  # noqa: PLC0415  torch is not needed to merge
    from gradcheck_cli.compute.engine import Engine  # noqa: PLC0415

    engine = Engine(options.device, list(plugins.candidate(options.provider).apis.values()))
    where, began = engine.environment(), time.perf_counter()
    which = {name: getattr(options, name) for name in ("chain", "expanded", "recipes")}
    if options.recipes:  # of which no provider is judged before it is calibrated
        quantised.CALIBRATED[options.provider] = RECIPES
    mine = shard(cases(options.provider, options.cases, options.seed, **which), options.shard)
    who = " ".join([options.provider, *(name for name, asked in which.items() if asked)])
    outcomes: Counter[str] = Counter()
    alarms: list[Alarm] = []
    values: Values = {}
    for done, case in enumerate(until_interrupted(mine), 1):
        # The tensors as they were found: what altered ones would show is no word on rounding.
        seen = engine.run(msgspec.structs.replace(pipeline.job(case), mutants=[]))
        verdict = conclude(case, seen, where)
        outcomes[verdict.outcome.value] += 1
        if verdict.outcome not in (Outcome.PASSED, Outcome.REFUSED):
            alarms.append(Alarm(case=str(case), outcome=verdict.outcome, findings=verdict.findings))
        for name, figure, value in figures(case, seen) if verdict.outcome in ROUNDS else ():
            values.setdefault(name, {f: [] for f in FIGURES})[figure].append(value)
        if done % 20 == 0 or done == len(mine):
            print(f"{done} of {len(mine)} cases, {len(alarms)} alarms", file=sys.stderr)
        if seen.raised and seen.raised.sticky:
            print(f"the device no longer answers after {case}: what follows is left out", file=sys.stderr)
            break
    return Calibration(
        asked=[f"{who} on {options.device}: cases {options.cases}, seed {options.seed}, {options.shard}"],
        environments=[where],
        seconds=round(time.perf_counter() - began, 2),
        cases=sum(outcomes.values()),
        outcomes=dict(outcomes),
        alarms=alarms,
        classes={name: {f: spread(f, values[name][f]) for f in FIGURES} for name in sorted(values)},
    )


def until_interrupted(whole: list[Case]) -> Iterator[Case]:
    """Each case; after SIGINT the one in work is the last, and what was measured is kept."""
    asked_to_end: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked_to_end.append(number))
    for case in whole:
        if not asked_to_end:
            yield case
    signal.signal(signal.SIGINT, before)


def shard(whole: list[Case], asked: str) -> list[Case]:
    """The I-th of N shards: every N-th case."""
    index, _, count = asked.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        sys.exit(f"--shard {asked}: expected I/N with I from 1 to N, such as 1/4")
    return whole[int(index) - 1 :: int(count)]


def figures(case: Case, seen: Observation) -> Iterator[tuple[str, str, float]]:
    """Class, figure and value of every slot that got tokens, in the buffer and content of the contract."""
    fused = "fused" if case.fuse_wgrad_accumulation else "unfused"
    under = [] if case.recipe == "none" else [case.recipe]
    for channel in seen.channels:
        found = [phase for phase in channel.phases if not phase.mutant]
        as_found = msgspec.structs.replace(channel, phases=found)
        for wanted in expected(case) if channel.fill == "normal" and found else ():
            slot = buffers(wanted, as_found).get(wanted.buffer)
            deviation = slot.contents.get(wanted.content) if slot else None
            for figure in FIGURES if deviation and not wanted.empty else ():
                value = getattr(deviation, figure)
                if value is not None:
                    yield " ".join([case.dtype, wanted.role, fused, case.grad_output, *under]), figure, value


def spread(figure: str, values: list[float]) -> Spread:
    """The distribution of values that are all known."""
    top = FIGURES[figure]
    histogram = np.histogram(values, BINS, (0.0, top))[0].tolist()
    exact = np.quantile(values, QUANTILES, method="higher").tolist()
    return Spread(
        count=len(values),
        quantiles={str(q): value for q, value in zip(QUANTILES, exact, strict=True)},
        from_values=True,
        top=top,
        histogram=histogram,
        above=len(values) - sum(histogram),
    )


def merged(one: Calibration, other: Calibration) -> Calibration:
    """Two shards as one."""
    twice = sorted(set(one.asked) & set(other.asked))
    if twice:
        sys.exit(f"--merge: expected shards that differ; found one twice ({twice[0]}): leave one of them out")
    classes = dict(one.classes)
    for name, spreads in other.classes.items():
        mine = classes.get(name)
        classes[name] = {f: added(mine[f], spreads[f]) for f in FIGURES} if mine else spreads
    return Calibration(
        asked=one.asked + other.asked,
        environments=[*one.environments, *(e for e in other.environments if e not in one.environments)],
        seconds=one.seconds + other.seconds,
        cases=one.cases + other.cases,
        outcomes=dict(Counter(one.outcomes) + Counter(other.outcomes)),
        alarms=one.alarms + other.alarms,
        classes=dict(sorted(classes.items())),
    )


def added(one: Spread, other: Spread) -> Spread:
    """Two distributions of one figure as one: counts and the largest value exactly."""
    histogram = [a + b for a, b in zip(one.histogram, other.histogram, strict=True)]
    count, largest = one.count + other.count, max(one.quantiles["1.0"], other.quantiles["1.0"])
    # The bin of the value that stands at the quantile's place; beyond the last bin only the largest value is known.
    edges = [*(one.top * (i + 1) / BINS for i in range(BINS)), largest]
    reached = np.cumsum([*histogram, one.above + other.above])
    places = [int(np.searchsorted(reached, math.ceil(q * (count - 1)), side="right")) for q in QUANTILES]
    upper = {str(q): min(edges[place], largest) for q, place in zip(QUANTILES, places, strict=True)}
    return Spread(
        count=count,
        quantiles=upper | {"1.0": largest},
        from_values=False,
        top=one.top,
        histogram=histogram,
        above=one.above + other.above,
    )


def show(found: Calibration) -> None:
    """One row for each class, then where it ran, then every alarm."""
    console = Console(width=max(Console().width, WIDTH))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.outcomes.items()))
    table = Table(title=f"{found.cases} cases in {found.seconds:.0f} s: {counts}; quantiles {', '.join(SHOWN)}")
    for heading in ("class", "slots", *FIGURES):
        table.add_column(heading, justify="left" if heading == "class" else "right", no_wrap=True)
    for name, spreads in found.classes.items():
        table.add_row(name, str(spreads["ratio"].count), *(told(spreads[figure]) for figure in FIGURES))
    console.print(table)
    for where in found.environments:
        versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
        console.print(f"{where.device} ({where.device_name}): {versions}", soft_wrap=True, highlight=False)
    for alarm in found.alarms:
        whys = "".join(f"\n  {finding.slot}: {finding.why}" for finding in alarm.findings)
        console.print(f"{alarm.outcome.value} {alarm.case}{whys}", soft_wrap=True, markup=False, highlight=False)


def told(one: Spread) -> str:
    """Some quantiles side by side; those that are only known not to be larger are marked."""
    return " ".join(f"{'' if one.from_values or q == '1.0' else '<='}{one.quantiles[q]:.2g}".rjust(8) for q in SHOWN)


def as_a_worker(provider: str) -> None:
    """Start over with the variables that a worker of this provider has before its first import."""
    missing = {name: value for name, value in plugins.candidate(provider).environment.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})  # noqa: S606  no shell


def main() -> None:
    """Run a shard, or merge what shards have written; then write it and show it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--provider", default="torch", choices=list(plugins.candidates()))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chain", action="store_true", help="op_mlp in place of single layers")
    parser.add_argument("--expanded", action="store_true", help="cases of grad_output=expanded alone")
    parser.add_argument("--recipes", action="store_true", help="single layers that a recipe of FP8 quantises")
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.merge:
        found, *others = (from_json(file.read_bytes(), Calibration) for file in options.merge)
        for other in others:
            found = merged(found, other)
    else:
        as_a_worker(options.provider)
        found = measured(options)
    if options.output:
        options.output.write_text(to_json(found) + "\n", encoding="utf-8")
    if options.table or not options.output:
        show(found)


if __name__ == "__main__":
    main()
