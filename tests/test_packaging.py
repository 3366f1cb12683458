"""Does an installation bring what gradcheck needs, and leave alone what is there?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# What NVIDIA's container nvcr.io/nvidia/pytorch:26.06-py3 calls its own builds. torch's is a pre-release.
CONTAINER = {"torch": "2.13.0a0+8145d630e8.nv26.6", "transformer_engine": "2.17.0+2e559f06"}
# What an index offers besides: newer, and final, so that pip has a reason to take them.
INDEX = {
    "torch": "2.13.0",
    "transformer_engine": "2.20.2",
    "typer": "0.29.2",
    "rich": "15.0.0",
    "numpy": "2.2.6",
    "pandas": "2.3.3",
    "msgspec": "0.23.0",
    "packaging": "26.4",
    "safetensors": "0.8.0",
    "tomli": "2.5.0",
}


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def offer(folder: Path, name: str, version: str) -> None:
    """Write the smallest wheel that pip takes."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata(name, version))
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def environment_with(folder: Path, installed: dict[str, str]) -> Path:
    """A virtual environment in which these distributions count as installed; its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name, version in installed.items():
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata(name, version), encoding="utf-8")
        (info / "RECORD").write_text("", encoding="utf-8")
        (info / "INSTALLER").write_text("pip\n", encoding="utf-8")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for name, version in INDEX.items():
        offer(folder, name, version)
    return folder


def planned(python: Path, requirement: str, index: Path, constraint: str = "") -> dict[str, str]:
    """What pip would install, by name; nothing is installed, and neither network nor configuration is read."""
    constraints = index.parent / f"{index.name}-constraint.txt"
    constraints.write_text(constraint, encoding="utf-8")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--dry-run", "--report", "-"]
    found = subprocess.run(
        [*pip, "--no-index", "--find-links", str(index), requirement],
        env={**ours, "PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": str(constraints)},
        check=True,
        capture_output=True,
        text=True,
    )
    parts = [part["metadata"] for part in json.loads(found.stdout)["install"]]
    return {re.sub("[-_.]+", "-", part["name"]).lower(): part["version"] for part in parts}


KEPT = {"alone": "{}", "with the extra `te`": "{}[te]"}
CONSTRAINTS = {
    "an empty constraint file": "",
    "a constraint file with the container's torch": f"torch=={CONTAINER['torch']}",
}


@pytest.mark.parametrize("requirement", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_the_container_keeps_its_torch_and_transformer_engine(
    requirement: str, constraint: str, wheel: Path, index: Path, tmp_path: Path
) -> None:
    python = environment_with(tmp_path / "venv", CONTAINER)
    plan = planned(python, requirement.format(wheel), index, constraint)
    assert set(plan) - {"tomli"} == {
        "gradcheck-cli", "typer", "rich", "numpy", "packaging", "pandas", "msgspec", "safetensors",
    }  # fmt: skip


def test_without_a_torch_the_plan_brings_one(wheel: Path, index: Path, tmp_path: Path) -> None:
    plan = planned(environment_with(tmp_path / "venv", {}), f"{wheel}[te]", index)
    assert (plan["torch"], plan["transformer-engine"]) == (INDEX["torch"], INDEX["transformer_engine"])


def test_a_torch_older_than_the_bound_is_replaced(wheel: Path, index: Path, tmp_path: Path) -> None:
    plan = planned(environment_with(tmp_path / "venv", {"torch": "2.5.1"}), str(wheel), index)
    assert plan["torch"] == INDEX["torch"]


def test_the_wheel_brings_every_matrix(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gradcheck_cli/cases/")}
    assert inside == {f"gradcheck_cli/{file.relative_to(ROOT)}" for file in (ROOT / "cases").rglob("*.*")} != set()


def test_the_wheel_holds_the_package_and_its_licence_only(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"gradcheck_cli", f"gradcheck_cli-{__version__}.dist-info"}


def test_the_wheel_names_the_command_and_its_dependencies(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    info = f"gradcheck_cli-{__version__}.dist-info"
    head = HeaderParser().parsestr(files.read(f"{info}/METADATA").decode())
    assert "gradcheck = gradcheck_cli.cli:main" in files.read(f"{info}/entry_points.txt").decode()
    assert {re.split(r"[^a-z]", line)[0] for line in head.get_all("Requires-Dist", []) if "extra ==" not in line} == {
        "torch", "typer", "rich", "numpy", "packaging", "pandas", "msgspec", "safetensors", "tomli",
    }  # fmt: skip


def test_the_pinned_set_up_holds_every_dependency_and_every_tool_exactly() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")}
    asked = {re.split(r"[<>=; ]", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert pinned == asked | set(PROJECT["dependency-groups"]["dev"])


def test_the_version_has_an_entry_in_the_changelog() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
