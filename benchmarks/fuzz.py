"""Does any input end otherwise than right or with a clear error? python benchmarks/fuzz.py [inputs] [seed] [kind]."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import fuzzed


def attacked(act: Callable[[Any], None], strategy: Any, inputs: int, number: int) -> tuple[Counter[str], float]:
    """How so many inputs ended, and the seconds of the slowest; AssertionError shows the smallest that is a fault."""
    ended: Counter[str] = Counter()
    slowest = [0.0]

    @seed(number)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(strategy)
    def each(value: Any) -> None:
        began = time.perf_counter()
        ended[fuzzed.answered(lambda: act(value))] += 1
        slowest[0] = max(slowest[0], time.perf_counter() - began)

    each()
    return ended, slowest[0]


def main() -> int:
    """Every kind of input, as many of each; what was found is printed, and ends with 1."""
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    kinds = {name: one for name, one in fuzzed.every_kind() if len(sys.argv) <= 3 or name == sys.argv[3]}
    total: Counter[str] = Counter()
    shares = sum(share for share, _, _ in kinds.values())
    for name, (share, act, strategy) in kinds.items():
        began = time.perf_counter()
        try:
            ended, slowest = attacked(act, strategy, -(-inputs * share // shares), number)
        except BaseException as fault:
            if isinstance(fault, KeyboardInterrupt):
                raise
            print(f"{name}: FAULT {type(fault).__name__}: {fault}"[:600])
            for note in getattr(fault, "__notes__", []):
                print(f"    {note}"[:1500])
            last = fault.__traceback__
            while last and last.tb_next:
                last = last.tb_next
            if last:
                print(f"    at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}")
            total["faults"] += 1
            continue
        total += ended
        took = time.perf_counter() - began
        print(f"{name}: {dict(ended)}, slowest {slowest:.2f} s, all {took:.0f} s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{total['right'] + total['refused']:,} inputs: {dict(total)}; {peak} MB at most")
    return int(bool(total["faults"]))


if __name__ == "__main__":
    sys.exit(main())
