"""What of the process does a candidate leave set otherwise? Every later phase, and every later case, meets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Setting(NamedTuple):
    """One switch of torch's that holds for a whole thread or process."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _autocast(device: str) -> Setting:
    return Setting(
        f"autocast on {device.upper()}",
        lambda: torch.is_autocast_enabled(device),
        lambda on: torch.set_autocast_enabled(device, on),
    )


SETTINGS = (
    Setting("the grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting(
        "the choice of deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    _autocast("cpu"),
    _autocast("cuda"),
)


@contextmanager
def kept(changed: list[str]) -> Iterator[None]:
    """Set all of them back at the end, and add to `changed` the names of those that were left otherwise."""
    before = [one.read() for one in SETTINGS]
    try:
        yield
    finally:
        for setting, value in zip(SETTINGS, before, strict=True):
            if setting.read() != value:
                setting.write(value)
                changed.append(setting.name)
