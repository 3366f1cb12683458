"""How long until the first answer? Wall and CPU time of whole commands: python benchmarks/start.py [runs]."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = ["run", "--provider", "torch", "--device", "cpu", "--quiet", "--output"]
# What each may take: seconds of wall, seconds of CPU (children included).
BUDGETS = {"--help": (0.4, 0.25), "list --matrix full": (0.4, 0.25), "core on the CPU": (30.0, 60.0)}


def measured(arguments: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one command, its own children included."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "gradcheck_cli", *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, cpu


def main() -> None:
    """Print the median of several runs of each command against its budget."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        for name, (wall_budget, cpu_budget) in BUDGETS.items():
            times = []
            for number in range(runs if name != "core on the CPU" else 1):
                arguments = [*RUN, str(Path(folder, str(number)))] if "core" in name else name.split()
                times.append(measured(arguments))
            wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{name:20} wall {wall:6.2f} s of {wall_budget:g}   cpu {cpu:6.2f} s of {cpu_budget:g}")


if __name__ == "__main__":
    main()
