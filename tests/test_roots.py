"""Does a published text name the machine?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from in_process import observed

from gradcheck_cli.roots import without_roots


def test_a_path_below_the_longest_entry_of_sys_path_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/home/me", "/home/me/site-packages", "relative"])
    said = 'File "/home/me/site-packages/torch/nn.py", and File "/home/me/mine.py", and /usr/lib/other.py'
    assert without_roots(said) == 'File "torch/nn.py", and File "mine.py", and /usr/lib/other.py'


def test_what_cannot_be_written_to_a_file_is_written_out() -> None:
    assert without_roots("caf\udce9 \U0001f600 é").encode() == "caf\\udce9 \U0001f600 é".encode()


def test_what_is_kept_of_an_exception_names_no_path_of_this_machine() -> None:
    raised = observed("torch:api=grouped_mm:grad_output=expanded").raised
    assert raised is not None
    assert 'File "gradcheck_cli/compute/trainer.py"' in raised.traceback
    assert str(Path(__file__).parent.parent) not in raised.traceback
