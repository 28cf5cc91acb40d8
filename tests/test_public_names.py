"""The public names are few, listed, and on one page with tested output."""

import inspect
from pathlib import Path

import pytest

import wholegrain as wg
from wholegrain.api.policy_values import PolicyMaker

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text("utf-8")

NAMES = """
    Budget Category Dataset Date Guarantee Number Plan PrivateSteps Run RunSpec Standing SubjectData Target Text
    TunedRun Unit WholegrainError clinics fedavg femnist from_frame from_torch from_transformers higradavg_dp load
    local_group_dp
    local_item_dp mnist_writers nlswork plan plays private_steps shakespeare subject_codes subject_dp train tune
    uldp_avg user_ldp
""".split()

CALLS = "from_frame from_torch train tune plan load private_steps clinics subject_codes".split()
VALUES = "Number Date Category Text Target Run SubjectData RunSpec Budget".split()


def test_the_names_are_these() -> None:
    assert sorted(wg.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_on_the_page(name: str) -> None:
    if isinstance(getattr(wg, name), PolicyMaker):
        assert f"`wg.{name}`" in PAGE
    else:
        assert f"::: {wg._MODULES[name]}.{name}\n" in PAGE


@pytest.mark.parametrize("name", [*CALLS, *VALUES])
def test_every_call_shows_tested_output(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(wg, name)) or "")
