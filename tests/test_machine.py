"""Is it told where a run happened, and nothing that is nobody's business?"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from gradcheck_cli.compute import machine
from gradcheck_cli.records.base import from_json
from gradcheck_cli.records.environment import Environment

INSTALLED = {
    "an index": ("pip\n", None, "pip, from a package index"),
    "sources at a commit": (
        "uv",
        '{"url": "ssh://git@host.acme.internal/te", "vcs_info": {"vcs": "git", "commit_id": "2e559f06aabbccddeeff"}}',
        "uv, from sources at commit 2e559f06aabb",
    ),
    "a folder": ("pip", '{"url": "file:///home/mallory/te", "dir_info": {}}', "pip, from a folder of sources"),
    "a file": ("pip", '{"url": "file:///home/mallory/te.whl", "archive_info": {}}', "pip, from a file"),
    "a commit that is none": ("pip", '{"vcs_info": {"commit_id": "/home/mallory"}}', "pip, from a file"),
    "no JSON": ("pip", "/home/mallory", "pip, from a direct reference"),
    "an installer that is none": ("/home/mallory/bin/pip", None, "an unknown installer, from a package index"),
    "nothing written down": (None, None, "an unknown installer, from a package index"),
}


@pytest.mark.parametrize(("installer", "direct", "said"), INSTALLED.values(), ids=INSTALLED)
def test_how_a_library_was_installed_is_told_without_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str | None, direct: str | None, said: str
) -> None:
    folder = tmp_path / "some_engine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-engine\nVersion: 1.0\n")
    for name, text in (("INSTALLER", installer), ("direct_url.json", direct)):
        if text is not None:
            (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metadata.version("some-engine") == "1.0"
    assert machine.installer("some-engine") == said


def test_a_container_is_known_by_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(machine, "_MARKS", {"Podman": str(tmp_path / ".containerenv")})
    assert machine.container() == machine.NO_CONTAINER
    (tmp_path / ".containerenv").touch()
    assert machine.container() == "Podman"


def test_an_environment_of_an_older_run_still_loads() -> None:
    older = from_json('{"versions": {"torch": "2.11.0"}, "device": "cpu", "device_name": "CPU"}', Environment)
    assert (older.system, older.container, older.installed) == ("", "", {})
