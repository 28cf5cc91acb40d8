"""A loop of one's own takes the same steps as a run: the same gradients, the same ledger, the same guarantee."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wholegrain as wg
from wholegrain.api import private_loop
from wholegrain.errors import BudgetError, LedgerError, ModelError, SpecError
from wholegrain.privacy.accountants import PldAccountant
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_state import RunAccount
from wholegrain.silo.training import LocalSteps

NORTH = wg.clinics(patients=300, clinics=3).silo("clinic-0")
HALF = wg.subject_dp(rate=0.5)
SIZES = {"clinic-0": {"items": 300, "subjects": 150}}

pytestmark = pytest.mark.usefixtures("coarse_prices")


def a_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))


def loop(net: nn.Module, optimizer: torch.optim.Optimizer, **settings: Any) -> wg.PrivateSteps:
    private = wg.private_steps(net, NORTH, **{"policy": HALF, "epsilon": 4, "steps": 12, **settings})
    for _ in private:
        optimizer.step()
    return private


def parameters(net: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def test_sgd_of_ones_own_gives_the_model_of_train_to_the_bit() -> None:
    net, same = a_net(), a_net()
    private = loop(net, torch.optim.SGD(net.parameters(), lr=0.5))
    run = wg.train(NORTH, same, policy=HALF, epsilon=4, rounds=12, learning_rate=0.5, test=0.0)
    assert torch.equal(parameters(net), parameters(same))
    assert private.guarantee == run.guarantee
    assert private.spent == run.guarantee.epsilon <= 4


def only_run(path: Path) -> RunAccount:
    with Ledger.open(path, create=False) as ledger:
        (account,) = ledger.state.runs.values()
        return account


def test_adam_of_ones_own_gives_the_model_of_train_with_the_same_ledger(tmp_path: Path) -> None:
    net, same = a_net(), a_net()
    private = loop(net, torch.optim.Adam(net.parameters(), lr=0.05, betas=(0.9, 0.99)), ledger=tmp_path / "own.sqlite")
    server = {"step": "adam", "learning_rate": 0.05}
    run = wg.train(
        NORTH,
        same,
        policy=HALF,
        epsilon=4,
        rounds=12,
        learning_rate=1.0,
        server=server,
        test=0.0,
        ledger=tmp_path / "run.sqlite",
    )
    assert torch.allclose(parameters(net), parameters(same), atol=1e-4)
    assert not torch.allclose(parameters(net), parameters(a_net()), atol=0.1)
    assert private.guarantee == run.guarantee
    own, theirs = only_run(tmp_path / "own.sqlite"), only_run(tmp_path / "run.sqlite")
    assert own.reserved == own.released == theirs.reserved == theirs.released == {"clinic-0": 12}
    assert own.opening.terms == theirs.opening.terms
    assert own.opening.account == theirs.opening.account


def test_what_is_spent_grows_with_every_step_and_ends_with_the_last() -> None:
    net = a_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    private = wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=3)
    assert (private.spent, len(private)) == (0.0, 3)
    spent = []
    for number in private:
        optimizer.step()
        spent.append((number, private.spent))
    assert [number for number, _ in spent] == [0, 1, 2]
    assert 0 < spent[0][1] < spent[1][1] < spent[2][1] <= 4
    assert list(private) == []
    assert private.spent == spent[2][1]


def test_a_step_is_paid_for_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    private = wg.private_steps(a_net(), NORTH, policy=HALF, epsilon=4, steps=3)

    def fail(*arguments: object) -> None:
        raise RuntimeError("no gradient")

    monkeypatch.setattr("wholegrain.silo.training.LocalSteps.gradient", fail)
    with pytest.raises(RuntimeError):
        next(private)
    assert private.spent > 0


def test_a_plan_is_priced_when_it_is_made_and_its_steps_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    private = wg.private_steps(a_net(), NORTH, policy=HALF, epsilon=4, steps=5)
    asked: list[float] = []
    price = PldAccountant.epsilon
    monkeypatch.setattr(PldAccountant, "epsilon", lambda *given: asked.append(given[2]) or price(*given))  # type: ignore[func-returns-value]
    with torch.no_grad():
        for number in private:
            next(iter(private._net.parameters())).add_(1.0)
            if number == 3:
                break
    assert not asked
    assert 0 < private.spent < 4
    assert asked


def noted(path: Path) -> list[str]:
    """The kinds of the ledger's entries after its opening, the budget's and the run's."""
    with Ledger.open(path, create=False) as ledger:
        rows = ledger._database.execute("SELECT body FROM entries ORDER BY number").fetchall()
    return [json.loads(body)["kind"] for (body,) in rows][3:]


def test_a_step_is_one_write_which_also_notes_that_the_one_before_was_released(tmp_path: Path) -> None:
    heads: list[int] = []
    net, path = a_net(), tmp_path / "own.sqlite"
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    private = wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=9, ledger=path)
    private._guard.ledger.notice = lambda head: heads.append(head.number)
    for number in private:
        optimizer.step()
        if number == 2:
            break
    assert noted(path) == ["reserved", "released", "reserved", "released", "reserved"]
    assert len(heads) == 3
    private.close()
    assert noted(path)[-2:] == ["reserved", "released"]
    assert only_run(path).released == {"clinic-0": 3}


def test_a_step_that_failed_is_paid_for_and_never_noted_as_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, path = a_net(), tmp_path / "own.sqlite"
    with wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=3, ledger=path) as private:
        next(private)
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        gradient = LocalSteps.gradient
        monkeypatch.setattr(LocalSteps, "gradient", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(private)
        monkeypatch.setattr(LocalSteps, "gradient", gradient)
        assert next(private) == 2
    assert noted(path) == ["reserved", "released", "reserved", "reserved", "released"]
    assert only_run(path).reserved == {"clinic-0": 3}


def test_a_budget_that_is_spent_pays_for_no_further_loop(tmp_path: Path) -> None:
    account = {"path": str(tmp_path / "ledger.sqlite"), "epsilon": 5.0}
    net = a_net()
    loop(net, torch.optim.SGD(net.parameters(), lr=0.1), ledger=account)
    with pytest.raises(BudgetError, match="refused before any silo trains"):
        wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=12, ledger=account)


def test_secure_noise_is_a_release_and_differs_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path))
    nets = [a_net(), a_net()]
    for number, net in enumerate(nets):
        private = loop(
            net,
            torch.optim.Adam(net.parameters()),
            noise="secure",
            sizes=SIZES,
            steps=3,
            ledger={"path": str(tmp_path / f"{number}.sqlite"), "data": f"clinics {number}"},
        )
        assert not private.guarantee.simulation
        assert private.guarantee.standing is wg.Standing.PROVED
    assert not torch.equal(parameters(nets[0]), parameters(nets[1]))


def test_a_loop_of_ones_own_counts_its_steps_elsewhere_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLEGRAIN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WHOLEGRAIN_COUNTER", str(tmp_path / "counter"))
    (tmp_path / "counter").touch()
    net = a_net()
    release: dict[str, Any] = {"noise": "secure", "sizes": SIZES, "steps": 3}
    release["ledger"] = {"path": str(tmp_path / "own" / "ledger.sqlite"), "data": "clinics", "epsilon": 20.0}
    loop(net, torch.optim.Adam(net.parameters()), **release)
    places = [tmp_path / "state", tmp_path / "own"]
    for place in places:
        shutil.copytree(place, tmp_path / "copy" / place.name)
    loop(net, torch.optim.Adam(net.parameters()), **release)
    for place in places:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "copy" / place.name, place)
    with pytest.raises(LedgerError, match="which the counter"):
        loop(net, torch.optim.Adam(net.parameters()), **release)


def test_frozen_parameters_get_no_gradient() -> None:
    net = a_net()
    first = copy.deepcopy(net)
    net[0].requires_grad_(False)  # type: ignore[operator, index]
    loop(net, torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5), steps=3)
    assert torch.equal(net[0].weight, first[0].weight)  # type: ignore[index]
    assert net[0].weight.grad is None  # type: ignore[index]
    assert not torch.equal(net[2].weight, first[2].weight)  # type: ignore[index]


def test_an_optimizer_of_another_net_is_noticed() -> None:
    other = a_net()
    with pytest.raises(ModelError, match="give the optimizer this net's parameters"):
        loop(a_net(), torch.optim.SGD(other.parameters(), lr=0.1))


def test_parameters_that_overflow_are_refused_before_the_next_step_is_paid_for() -> None:
    net = a_net()
    private = wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=3)
    next(private)
    spent = private.spent
    with torch.no_grad():
        next(iter(net.parameters())).fill_(float("nan"))
    with pytest.raises(ModelError, match="not all finite after step 1"):
        next(private)
    assert private.spent == spent


def test_several_silos_are_refused() -> None:
    data = wg.clinics(patients=300, clinics=3)
    with pytest.raises(SpecError, match=r"the data has 3; take one with data\.silo"):
        wg.private_steps(a_net(), data, policy=HALF, epsilon=4, steps=3)


def test_what_belongs_to_rounds_is_refused() -> None:
    with pytest.raises(SpecError, match="no keyword 'learning_rate'"):
        wg.private_steps(a_net(), NORTH, policy=HALF, epsilon=4, steps=3, learning_rate=1.0)  # type: ignore[call-arg]


class CentredInTraining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) if self.training else x


def test_a_net_stays_in_the_mode_in_which_it_was_tried() -> None:
    """One that was tried in evaluation could mix items as soon as its owner calls train()."""
    found = []
    for training in (False, True):
        net = nn.Sequential(a_net(), CentredInTraining()).eval()
        private = wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=2)
        net.train(training)
        next(private)
        assert all(part.training is training for part in net.modules())
        found.append(
            torch.cat([parameter.grad.view(-1) for parameter in net.parameters() if parameter.grad is not None])
        )
    assert torch.equal(*found)


@pytest.mark.slow
def test_a_loop_in_half_precision_gives_the_model_of_train_to_the_bit() -> None:
    net, same = a_net(), a_net()
    private = loop(net, torch.optim.SGD(net.parameters(), lr=0.5), precision="bfloat16")
    run = wg.train(NORTH, same, policy=HALF, epsilon=4, rounds=12, learning_rate=0.5, test=0.0, precision="bfloat16")
    assert torch.equal(parameters(net), parameters(same))
    assert private.guarantee == run.guarantee
    other = a_net()
    loop(other, torch.optim.SGD(other.parameters(), lr=0.5))
    assert not torch.equal(parameters(net), parameters(other))


def test_a_net_on_another_device_than_its_gradients_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is pretended: only that it is another one matters."""
    net = a_net().to("meta")
    with pytest.raises(ModelError, match=r"The net is on meta.*give it on the CPU"):
        wg.train(NORTH, net, policy=HALF, epsilon=4, rounds=2)
    monkeypatch.setattr(private_loop, "_on_host", lambda net: a_net())
    with pytest.raises(SpecError, match="The net is on meta, and its gradients are computed on cpu: say device='meta'"):
        wg.private_steps(net, NORTH, policy=HALF, epsilon=4, steps=2)
