"""docs/spec.md has every key of a spec under its section, with the default that the code has."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from wholegrain.federation.server_settings import ServerSettings
from wholegrain.runs import spec_sections as sections
from wholegrain.runs.spec import RunSpec

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text("utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "data": sections.DataSpec,
    "data.table": sections.TableSpec,
    "silos": sections.SilosSpec,
    "model": sections.ModelSpec,
    "policy": sections.PolicySpec,
    "privacy": sections.PrivacySpec,
    "trust": sections.TrustSpec,
    "ledger": sections.LedgerSpec,
    "rounds": sections.RoundsSpec,
    "server": ServerSettings,
    "evaluation": sections.EvaluationSpec,
    "compute": sections.ComputeSpec,
}
OTHERS = {"federation": sections.FederationSpec, "about": sections.AboutSpec}


def rows(title: str) -> dict[str, tuple[str, str]]:
    """By key: its default and its meaning, from the table under a heading."""
    (body,) = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.S | re.M)
    found = {}
    for line in re.findall(r"^\| (`.*) \|$", body, re.M):
        keys, default, meaning = line.split(" | ", 2)
        names, defaults = re.findall(r"`([\w.]+)`", keys), default.split(", ")
        for number, name in enumerate(names):
            found[name] = (defaults[number] if len(defaults) == len(names) else default, meaning)
    return found


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_of_a_section_is_on_the_page_and_no_other(name: str) -> None:
    assert set(rows(f"`[{name}]`")) == set(SECTIONS[name].model_fields)


def test_every_section_is_on_the_page() -> None:
    told = {name.split(".")[0] for name in SECTIONS} | {name.split(".")[0] for name in rows("Other sections")}
    told |= set(rows("Top level"))
    assert {name for name in told if name} == set(RunSpec.model_fields)
    others = PAGE[PAGE.index("### Other sections") :]
    for name, section in OTHERS.items():
        assert [key for key in section.model_fields if not re.search(rf"`(?:{name})?\.{key}`", others)] == []


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'`"{value}"`' if isinstance(value, str) else f"{value:g}"


@pytest.mark.parametrize("name", SECTIONS)
def test_defaults_on_the_page_are_those_of_the_code(name: str) -> None:
    """Words may say more than None or an empty list; a value is a value."""
    shown = {key: default.strip("()") for key, (default, _) in rows(f"`[{name}]`").items()}
    for key, field in SECTIONS[name].model_fields.items():
        if field.default is PydanticUndefined and field.default_factory is None:
            assert shown[key] == "required", key
        elif isinstance(field.default, bool | str | int | float):
            same = shown[key] == written(field.default) or float(shown[key]) == field.default
            assert same, (key, shown[key], field.default)
        else:
            assert re.fullmatch(r"[a-z –'.,0-9]+", shown[key]), (key, shown[key])
