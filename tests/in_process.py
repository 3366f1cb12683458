"""How does a test put a case through the real engine and the real judge, in its own process?"""

from __future__ import annotations

import functools

import msgspec
import torch

from gradcheck_cli import pipeline
from gradcheck_cli.compute.engine import Engine
from gradcheck_cli.judge.conclude import conclude
from gradcheck_cli.records.case import Case
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Fill, Observation
from gradcheck_cli.records.verdict import Verdict

CPU = Environment(versions={"torch": torch.__version__})


@functools.cache
def engine(target: str) -> Engine:
    """One engine for each target, as a worker would have it."""
    torch.set_num_threads(1)  # tests run beside each other
    return Engine("cpu", [target])


@functools.cache
def observed(case: str, fault: str = "") -> Observation:
    """What is seen of a case, of the candidate itself or of one of `faulty_layers` in its place."""
    job = pipeline.job(Case.parse(case))
    if fault:
        job = msgspec.structs.replace(job, target=f"faulty_layers:{fault}")
    return engine(job.target).run(job)


def verdict(case: str, fault: str = "", only: Fill | None = None) -> Verdict:
    """The verdict on it, or the one that a single channel would lead to."""
    observation = observed(case, fault)
    return conclude(Case.parse(case), seen_by(observation, only) if only else observation, CPU)


def seen_by(observation: Observation, fill: Fill) -> Observation:
    """The observation as if the other channel could not have been run."""
    channels = [
        channel if channel.fill == fill else msgspec.structs.replace(channel, inapplicable="left out", phases=[])
        for channel in observation.channels
    ]
    return msgspec.structs.replace(observation, channels=channels)
