"""The blocks of docs/coming-from.md do their task; those of a peer where it is installed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text("utf-8")
TASK, *BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


def play(title: str) -> dict[str, Any]:
    """The task, and then the block with this first line."""
    (block,) = (each for each in BLOCKS if each.startswith(f"# {title}\n"))
    names: dict[str, Any] = {}
    exec(compile(TASK, "coming-from.md", "exec"), names)
    exec(compile(block, "coming-from.md", "exec"), names)
    return names


def accuracy(net: Any, names: dict[str, Any]) -> float:
    with torch.no_grad():
        return float((net(names["inputs"]).argmax(1) == names["targets"]).double().mean())


@pytest.mark.usefixtures("coarse_prices")
@pytest.mark.parametrize("title", ["with wholegrain", "with wholegrain, silos", "with wholegrain, ULDP-AVG"])
@pytest.mark.slow
def test_wholegrain_does_the_task(title: str) -> None:
    names = play(title)
    if "run" in names:
        assert names["run"].guarantee.epsilon <= 4
    else:
        assert accuracy(names["net"], names) > 0.7


@pytest.mark.filterwarnings("ignore")  # a peer's own
def test_opacus_does_the_task() -> None:
    pytest.importorskip("opacus", reason="no Opacus: pip install opacus")
    names = play("with Opacus")
    assert names["engine"].get_epsilon(1e-5) <= 4.1
    assert accuracy(names["net"], names) > 0.7


def test_flower_does_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clinics answer; the loop of the server needs ray, or processes."""
    app = pytest.importorskip("flwr.app", reason="no Flower: pip install 'wholegrain[flower]'")
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    names = play("with Flower")
    start = app.ArrayRecord(torch.nn.Linear(10, 2).state_dict())
    for clinic in range(2):
        where = {"partition-id": clinic}
        context = app.Context(run_id=1, node_id=1, node_config=where, state=app.RecordDict(), run_config={})
        asked = app.Message(app.RecordDict({"arrays": start}), dst_node_id=1, message_type="train")
        answer = names["client"](asked, context).content
        assert answer["metrics"]["num-examples"] == 200
        before, after = start.to_torch_state_dict(), answer["arrays"].to_torch_state_dict()
        assert not torch.equal(before["weight"], after["weight"])
    assert names["server"]
