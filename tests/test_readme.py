"""Is what the README says still true?"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gradcheck_cli import openings, plugins
from gradcheck_cli.records.candidate import Candidate
from gradcheck_cli.records.case import AXES, Case
from gradcheck_cli.records.verdict import Outcome
from gradcheck_cli.reporters.lines import folded
from gradcheck_cli.reporters.read import read

ROOT = Path(__file__).parent.parent
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
README = TEXTS["README.md"]
COMMANDS = re.findall(r"^\| `gradcheck (\w+)", README, flags=re.MULTILINE)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def spoken(*arguments: str) -> str:
    command = [sys.executable, "-m", "gradcheck_cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_outcomes_are_all_there_in_their_order_with_their_colour() -> None:
    assert [(row[0], row[2]) for row in rows("Outcomes")] == [(o.value, "yes" if o.green else "no") for o in Outcome]


def test_the_providers_are_all_there_with_their_apis() -> None:
    head = README.partition("## Two commands")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (`\w+`(?:, `\w+`)*) \|", head, flags=re.MULTILINE))
    known = {name: ", ".join(f"`{api}`" for api in found.apis) for name, found in plugins.BUILT_IN.items()}
    assert told == known


def test_the_axes_are_all_there_with_their_values_the_default_first() -> None:
    told = README.partition("## The axes")[2].partition("## Outcomes")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]*) \|", told, flags=re.MULTILINE)
    values = {name: re.findall(r"`(\w+)`", said) for names, said in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(values) == {*AXES} - {"provider", "api"}
    default = Case(provider="torch", api="loop").axes()
    assert {name: said[0] for name, said in values.items() if said} == {
        name: str(default[name]) for name, said in values.items() if said
    }
    for name, said in values.items():
        taken = [str(Case.of({**default, name: value, "bias": 1}).axes()[name]) for value in said]
        assert name == "bias" or taken == said


def test_the_commands_are_all_there() -> None:
    listed = spoken("--help").partition("Commands:")[2]
    assert set(re.findall(r"^  (\w+) {2,}", listed, flags=re.MULTILINE)) == set(COMMANDS)


def test_the_options_of_run_exist() -> None:
    told = set(re.findall(r"^\| `(-[-\w]+) [A-Z]+` \|", README, flags=re.MULTILINE))
    assert told - set(re.findall(r"(?<![-\w])--?[-\w]+", spoken("run", "--help"))) == set()
    assert told != set()


def test_the_options_of_run_are_followed_by_the_same_word_as_in_its_help() -> None:
    told = set(re.findall(r"^\| `(-[-\w]+ [A-Z]+)` \|", README, flags=re.MULTILINE))
    assert told - set(re.findall(r"^  (--?[-\w]+ [A-Z/]+)", spoken("run", "--help"), flags=re.MULTILINE)) == set()


def test_what_a_plug_in_can_declare_of_its_rounding_is_a_field_of_a_candidate() -> None:
    told = re.findall(r'`(main_grad_written_by|fp32_products)="(\w+)"`', README)
    assert {name for name, _ in told} == {"main_grad_written_by", "fp32_products"}
    for name, value in told:
        plain = {"name": "x", "apis": {}, "summary": "", "distribution": ""}
        assert getattr(msgspec.convert({**plain, name: value}, Candidate), name) == value


def test_every_kind_of_data_is_in_the_table_by_the_name_that_the_files_have() -> None:
    assert {row[0].partition(":")[0] for row in rows("What a green is worth")[:3]} == {"exact", "range", "random"}
    assert "`normal`" in README.split("\n## What a green is worth\n", 1)[1]


@pytest.mark.parametrize("text", re.findall(r"\w+:api=[^\s`']+", README))
def test_a_case_id_in_the_readme_is_one_in_its_shortest_form(text: str) -> None:
    assert str(Case.parse(text)) == text


def test_what_doctor_says_of_an_h200_is_what_it_prints_at_100_columns() -> None:
    told = README.split("\n## What runs where\n", 1)[1].split("```\n", 2)[1]
    here = read(ROOT / "reports" / "te-2.20.2-h200" / "core-cublas-13.5").environment
    assert told.splitlines() == [
        part for line in openings.table(plugins.BUILT_IN["te"], here, 100) for part in folded(line, 100).splitlines()
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_leads_to_a_file(name: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXTS[name]) if not link.startswith("http")]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_each_value_of_each_axis_is_executed_by_a_recorded_run_or_named_with_what_would_open_it() -> None:
    kept = [file.parent for file in (ROOT / "reports").glob("[!0-9]*/**/report.json")]  # runs of one's own have a date
    verdicts = [one for folder in kept for one in read(folder).verdicts]
    ran = {
        (axis, str(value))
        for one in verdicts
        if one.outcome.executed
        for axis, value in Case.of(one.axes).axes().items()
    }
    schemas = {field.name: msgspec.json.schema(field.type) for field in msgspec.structs.fields(Case)}
    values = {
        axis: schema.get("enum", [0, 1] if schema.get("type") == "boolean" else []) for axis, schema in schemas.items()
    }
    unseen = {f"{axis}={value}" for axis, own in values.items() for value in own if (axis, str(value)) not in ran}
    said = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    assert unseen == {
        "recipe=MXFP8",
        "recipe=NVFP4",
    }
    named = said[said.index("Of every axis") :].split("\n\n")[0]
    assert [one for one in unseen if one not in named] == []
