"""Every block of code in README and docs is run by a test, or stands below with a reason; no link is dead."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import wholegrain as wg

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(console|python|bash|sh)\n(.*?)^```", re.S | re.M)

RUN_BY = {
    "README.md": [
        (r"import wholegrain as wg\n\nvisits", "tests/test_readme.py::test_twelve_lines_print_what_they_should"),
        (r"data = wg\.from_frame", "tests/test_docs.py::test_the_tour_of_the_api_runs"),
        (r"\$ wholegrain (calibrate|account)", "tests/test_readme.py::test_commands_print_what_they_should"),
        (r"\$ wholegrain run examples/own_table", "tests/test_readme.py::test_the_run_prints_what_it_should"),
    ],
    "docs/audit.md": [(r"\$ wholegrain audit examples/clinics", "tests/cli/test_pages.py::test_audit")],
    "docs/coming-from.md": [
        (r"# the task", "tests/test_coming_from.py::test_wholegrain_does_the_task"),
        (r"# with Opacus", "tests/test_coming_from.py::test_opacus_does_the_task"),
        (r"# with Flower", "tests/test_coming_from.py::test_flower_does_the_task"),
        (r"# with wholegrain", "tests/test_coming_from.py::test_wholegrain_does_the_task"),
    ],
    "docs/diabetes130.md": [
        (r"\$ wholegrain data init", "tests/cli/test_diabetes130.py::test_a_spec_is_begun_as_the_page_shows"),
        (r"import tomllib", "tests/cli/test_diabetes130.py::test_the_python_of_the_page_runs"),
    ],
    "docs/extend.md": [
        (r'"""(visits|yogi)\.py"""', "tests/test_extend.py::test_a_source_and_a_server_optimiser"),
        (r'"""damp\.py"""', "tests/test_extend.py::test_with_the_rule_a_model_is_proved_and_is_the_reference"),
        (
            r'"""check_visits\.py"""',
            "tests/test_extend.py::test_the_test_of_a_source_holds_for_the_pages_own_and_finds_one_that_is_wrong",
        ),
    ],
    "docs/index.md": [(r"import wholegrain", "tests/test_readme.py::test_the_landing_page_begins_as_the_readme_does")],
    "docs/operate-a-federation.md": [
        (r"\$ wholegrain (federation|silo)", "tests/deploy/test_guide.py::test_every_command_of_the_guide_works")
    ],
    "docs/own-data.md": [(r"\$ wholegrain", "tests/cli/test_own_pages.py::test_five_commands_on_a_table")],
    "docs/own-model.md": [
        (r"\$ python examples", "tests/cli/test_own_pages.py::test_the_example_in_python_prints_what_it_should"),
        (r"import torch|from torch import|\$ ", "tests/cli/test_own_pages.py::test_a_model_of_ones_own"),
        (r"run = wg\.train", "tests/test_docs.py::test_a_part_of_a_module_is_trained"),
    ],
    "docs/own-policy.md": [(r'"""my_policies|\$ PYTHONPATH', "tests/cli/test_pages.py::test_own_policy")],
    "docs/reports.md": [(r"\$ wholegrain report", "tests/cli/test_pages.py::test_report")],
    "docs/secure-sums.md": [(r"\$ wholegrain", "tests/test_readme.py::test_commands_print_what_they_should")],
    "docs/soundness.md": [(r"\$ wholegrain", "tests/test_readme.py::test_soundness_shows_how_outputs_begin")],
    "docs/tasks.md": [(r"\$ wholegrain run", "tests/cli/test_pages.py::test_text")],
}

NOT_RUN = {
    "README.md": [(r"\$ make setup", "whoever runs the tests has done it")],
    "docs/start.md": [(r"\$ make setup", "whoever runs the tests has done it; test_readme.py runs the demo")],
    "docs/audit.md": [
        (r"wholegrain audit .*\n? *--canaries", "four trainings with 3,000 features; test_audit runs a smaller one")
    ],
    "docs/diabetes130.md": [(r"\$ wholegrain plan examples/diabetes130", "the table is not part of the clone")],
    "docs/clipping.md": [(r"net = wg\.from_transformers", "weights that lie on a hub")],
    "docs/paid-choices.md": [(r"wholegrain tune", "the reader's own spec; tests/cli/test_tune.py runs the command")],
    "docs/reproduction.md": [(r"\$ wholegrain reproduce", "half an hour; tests/reproduction runs the smallest scale")],
}


BENCHMARK = re.compile(r"(python benchmarks/.*\n)+")
"""Whole benchmarks are not run by tests; tests/benchmarks runs parts of them."""


def blocks(page: str) -> list[str]:
    found = [body for _, body in FENCE.findall((ROOT / page).read_text("utf-8"))]
    return [body for body in found if not BENCHMARK.fullmatch(body)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_code_is_run_or_listed(page: str) -> None:
    known = [*RUN_BY.get(page, []), *NOT_RUN.get(page, [])]
    shown = blocks(page)
    assert [block for block in shown if not any(re.search(pattern, block) for pattern, _ in known)] == []
    # Nor is anything listed that the page does not show.
    assert [pattern for pattern, _ in known if not any(re.search(pattern, block) for block in shown)] == []


@pytest.mark.parametrize("place", sorted({place for known in RUN_BY.values() for _, place in known}))
def test_a_test_that_is_named_exists(place: str) -> None:
    file, name = place.split("::")
    assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as the site names them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head)).strip().lower() for head in heads)
    return {re.sub(r"[-\s]+", "-", head) for head in plain} | set(re.findall(r'id="([\w-]+)"', text))


@pytest.mark.parametrize("page", PAGES)
def test_no_link_is_dead(page: str) -> None:
    """Links to files of the clone and to headings; `make docs` refuses those that lead out of the site."""
    here = ROOT / page
    text = here.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<\w+ [^>]*\bsrc(?:set)?="([^"]+)"', text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (here.parent / name).resolve() if name else here
        assert file.exists(), f"{page}: {target}"
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_no_code_in_a_table_has_an_escaped_bar(page: str) -> None:
    """The site shows the backslash; without it, other readers of Markdown end the cell."""
    assert re.findall(r"^\|.*`[^`|]*\\\|[^`]*`.*$", (ROOT / page).read_text("utf-8"), re.M) == []


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.slow
def test_the_tour_of_the_api_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second block of README, on a small table in the place of the reader's own."""
    monkeypatch.chdir(tmp_path)
    draws, rows = np.random.default_rng(0), 240
    df = pl.DataFrame(
        {
            "patient": [f"p{row // 4}" for row in range(rows)],
            "clinic": [("north", "south")[row // 4 % 2] for row in range(rows)],
            "ill": [("no", "yes")[row % 2] for row in range(rows)],
            "age": draws.integers(20, 90, rows),
            "sex": [("f", "m")[row // 4 % 2] for row in range(rows)],
        }
    )
    net = torch.nn.Linear(3, 2)
    dataset = torch.utils.data.TensorDataset(torch.randn(rows, 3), torch.randint(2, (rows,)))
    given = {"wg": wg, "df": df, "dataset": dataset, "ids": df["patient"].to_list(), "sites": df["clinic"].to_list()}
    names = {**given, "net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}
    (code,) = (block for block in blocks("README.md") if block.startswith("data = wg.from_frame"))
    from_frame, from_torch, rest = re.split(r"(?=^data = wg\.from_torch|^run = )", code, flags=re.M)
    exec(compile(from_frame, "README.md", "exec"), names)
    frame = names["data"]
    exec(compile(from_torch, "README.md", "exec"), names)
    names["data"] = frame  # either will do; predictions of a table need its columns
    exec(compile(rest, "README.md", "exec"), names)
    assert names["private"].guarantee.epsilon <= 4


@pytest.mark.usefixtures("coarse_prices")
def test_a_part_of_a_module_is_trained() -> None:
    (code,) = (block for block in blocks("docs/own-model.md") if "encoder.layer.3" in block)
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    parts = {"encoder": torch.nn.ModuleDict({"layer": layers}), "classifier": torch.nn.Linear(4, 2)}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.classifier = parts["encoder"], parts["classifier"]

        def forward(self, items: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                items = torch.tanh(layer(items))
            return self.classifier(items)

    people, net = [f"p{row // 2}" for row in range(80)], Net()
    dataset = torch.utils.data.TensorDataset(torch.randn(80, 4), torch.randint(2, (80,)))
    data = wg.from_torch(dataset, subjects=people, silos=["here"] * 80)
    names = {"wg": wg, "data": data, "net": net}
    exec(compile(code, "own-model.md", "exec"), names)
    assert names["run"].guarantee.epsilon <= 4
