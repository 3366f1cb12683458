"""Does a plug-in work like a provider that is built in, and does a broken one harm nobody else?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import typed

from gradcheck_cli import plugins

HEAD = "from gradcheck_cli.records.candidate import Candidate\n"
LOOP = "gradcheck_cli.compute.providers.torch_loop:build"


def candidate(name: str, api: str = "module") -> str:
    """The source of a plug-in: the loop candidate under another name."""
    apis = {api: LOOP}
    return f'{HEAD}CANDIDATE = Candidate(name="{name}", apis={apis}, summary="a loop", distribution="torch")\n'


# An entry point -> the module behind it, and what is said of it.
BROKEN = {
    "gone": (None, "plug-in gone (plugged_gone:CANDIDATE) cannot be imported: ModuleNotFoundError: No module named"),
    "leaving": ("raise SystemExit(0)\n", "cannot be imported: SystemExit: 0"),
    "failing": ("raise OSError('libfoo.so: cannot open')\n", "cannot be imported: OSError: libfoo.so: cannot open"),
    "empty": (HEAD, "plug-in empty (plugged_empty:CANDIDATE) cannot be imported: AttributeError: "),
    "untyped": ("CANDIDATE = {'name': 'untyped'}\n", "is a dict; expected a gradcheck_cli.records.candidate.Candidate"),
    "alias": (candidate("other"), "names its candidate 'other'; expected the name of the entry point"),
    "torch": (candidate("torch"), "names its candidate 'torch'; expected the name of the entry point, and no built-in"),
    "Loud": (candidate("Loud"), "is called Loud; expected names and apis of lower-case letters, digits and _"),
    "shouting": (candidate("shouting", "Big-Api"), "is called Big-Api; expected names and apis of lower-case"),
}
SMOKE = ("--matrix", "smoke", "--provider", "torch")

Install = Callable[[dict[str, str | None]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs plug-ins, by entry point and source, as a distribution of their own."""

    def installed(sources: dict[str, str | None]) -> None:
        metadata = tmp_path / "plugged-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n", encoding="utf-8")
        points = "".join(f"{name} = plugged_{name.lower()}:CANDIDATE\n" for name in sources)
        (metadata / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{points}", encoding="utf-8")
        for name, source in sources.items():
            if source is not None:
                (tmp_path / f"plugged_{name.lower()}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()

    yield installed
    monkeypatch.undo()
    forget()


@pytest.fixture
def broken(install: Install) -> None:
    """Every kind of broken plug-in at once, among them one that works."""
    install({name: source for name, (source, _) in BROKEN.items()} | {"mine": candidate("mine")})


def forget() -> None:
    """Entry points are looked for, and modules imported, once in a process."""
    for name in [name for name in sys.modules if name.startswith("plugged_")]:
        del sys.modules[name]
    for remembered in (plugins.candidates, plugins.broken, plugins._plugged_in):
        remembered.cache_clear()


def test_broken_plugins_change_nothing_for_the_providers_that_are_built_in(install: Install) -> None:
    before = typed("list", *SMOKE)
    install({name: source for name, (source, _) in BROKEN.items()})
    assert (before.code, before.err) == (0, "")
    assert typed("list", *SMOKE) == before


def test_a_broken_plugin_keeps_no_other_from_being_found(broken: None) -> None:
    assert list(plugins.candidates()) == ["te", "torch", "mine"]
    assert plugins.candidate("torch") is plugins.BUILT_IN["torch"]


def test_a_run_beside_broken_plugins_is_green(broken: None, tmp_path: Path) -> None:
    done = typed("run", "--case", "torch:api=loop", "--device", "cpu", "--output", str(tmp_path / "run"))
    assert (done.code, "executed 1 of 1 asked (100%) · 1 PASSED" in done.out) == (0, True)


@pytest.mark.parametrize("command", ("providers", "doctor --device cpu"))
def test_every_broken_plugin_is_named_as_closed_with_its_reason(broken: None, command: str) -> None:
    done = typed(*command.split())
    closed = [line.strip() for line in done.out.splitlines() if line.strip().startswith("closed: plug-in ")]
    assert done.code == 0
    assert [why for _, why in BROKEN.values() if not any(why in line for line in closed)] == []
    assert len(closed) == len(BROKEN)


# torch itself is built in, and an id cannot hold such a name as Loud.
ASKED = {f"list --provider {name}": name for name in BROKEN if name != "torch"}
ASKED |= {
    f"{command} {name}:api=module": name
    for name in BROKEN
    for command in ("run --case", "show")
    if name not in ("torch", "Loud")
}


@pytest.mark.parametrize(("command", "name"), tuple(ASKED.items()), ids=ASKED)
def test_a_broken_plugin_that_is_asked_for_by_name_ends_with_3_and_its_reason(
    broken: None, command: str, name: str
) -> None:
    done = typed(*command.split())
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("gradcheck: plug-in ")
    assert BROKEN[name][1] in done.err


def test_a_name_that_no_plugin_has_is_a_usage_error_among_broken_plugins(broken: None) -> None:
    done = typed("list", "--provider", "nope")
    assert done == (2, "", "gradcheck: unknown provider 'nope'; the providers are: te, torch, mine\n")


def test_a_plugin_is_listed_among_the_providers(install: Install) -> None:
    install({"mine": candidate("mine")})
    assert f"mine  a loop (plug-in, entry point of {plugins.GROUP})" in typed("providers").out


@pytest.mark.parametrize("api", ("module", "op", "loop", "fast_path"))
def test_a_plugin_gets_cases_of_the_default_matrix_whatever_its_api_is_called(install: Install, api: str) -> None:
    install({"mine": candidate("mine", api)})
    of_loop = typed("list", "--provider", "torch", "-k", "api=loop").out
    assert typed("list", "--provider", "mine").out == of_loop.replace("torch:api=loop", f"mine:api={api}") != ""


def test_a_plugin_is_put_on_trial_like_any_other(install: Install, tmp_path: Path) -> None:
    install({"mine": candidate("mine")})
    case = "mine:api=module:fuse_wgrad_accumulation=1:dtype=fp32"
    done = typed("run", "--case", case, "--device", "cpu", "--output", str(tmp_path / "run"))
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    assert (done.code, [verdict["case"] for verdict in report["verdicts"]]) == (0, [case])


def test_a_plugin_whose_grouped_mm_loops_in_secret_is_not_the_case(install: Install, tmp_path: Path) -> None:
    install({"mine": candidate("mine", "grouped_mm")})
    done = typed("run", "--case", "mine:api=grouped_mm", "--device", "cpu", "--output", str(tmp_path / "run"))
    (verdict,) = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))["verdicts"]
    assert (done.code, verdict["outcome"]) == (1, "NOT_THE_CASE")
    assert verdict["findings"][0]["why"].startswith("asked api=grouped_mm, and no grouped GEMM ran: forward: aten::")
    assert "forward: aten::mm" in verdict["kernels"]
