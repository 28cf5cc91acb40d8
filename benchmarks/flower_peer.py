"""The same federation as it is written today: Flower's simulation, with Opacus' ghost clipping in each silo.

Kind to the peer: one core, one flat array per message, a model and an optimizer kept between messages, the batches that
our own sampler draws. After each round the server takes the same steps without privacy, so that both are timed in one
process. Run by rounds.py, which imports this module (the silos' processes must find it by name).
"""

import json
import time
import warnings
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor

from loops import Plain
from peers import accepted, ghost
from settings import LEARNING_RATE
from silos import SETTINGS, Federated, federate, ready
from wholegrain.clipping.parameters import flatten, load

ONE_CORE = {
    "init_args": {"num_cpus": 1, "include_dashboard": False},
    "client_resources": {"num_cpus": 1, "num_gpus": 0},
}

client = ClientApp()


@lru_cache
def federation(model: str, silos: int, rounds: int) -> Federated:
    """The federation; every process of the simulation makes it once."""
    torch.set_num_threads(1)
    return federate(SETTINGS[model], silos, rounds)


@lru_cache
def machinery(model: str) -> tuple[Any, Any, Any]:
    """Opacus' module, optimizer and loss."""
    warnings.filterwarnings("ignore")
    return ghost(accepted(SETTINGS[model].build()), SETTINGS[model].batch, LEARNING_RATE)


@client.train()
def train(message: Message, context: Context) -> Message:
    """The silo's steps of one round."""
    task = message.content["task"]
    federated = federation(task["model"], task["silos"], task["rounds"])
    name = federated.plan.horizon.silos[int(context.node_config["partition-id"])]
    module, optimizer, loss = machinery(task["model"])
    load(module._module, torch.from_numpy(message.content["vector"].to_numpy_ndarrays()[0]))
    silo, policy = federated.silos[name], federated.plan.policy_for(name)
    draws = federated.trainer.noise.coins(task["round"], silo.facts.name)
    for batch in ready(silo, policy, draws, federated.setting.steps):
        optimizer.zero_grad()
        loss(module(batch.inputs), batch.targets).backward()
        optimizer.step()
    return Message(_content(flatten(module._module)), reply_to=message)


def simulate(model: str, silos: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of each round, and of the same steps taken bare; the first round starts the silos' processes."""
    server = ServerApp()
    found: list[dict[str, float]] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        federated = federation(model, silos, rounds)
        vector, plain = flatten(federated.model), Plain(federated.model)
        for number in range(rounds):
            batches = list(federated.ready(number))
            started = time.perf_counter()
            vector = _round(grid, vector, {"model": model, "silos": silos, "rounds": rounds, "round": number})
            found.append({"round": time.perf_counter() - started, "plain": plain.seconds(batches, time.perf_counter)})

    run_simulation(server_app=server, client_app=client, num_supernodes=silos, backend_config=ONE_CORE)
    return found


def _round(grid: Grid, vector: Tensor, task: dict[str, Any]) -> Tensor:
    """Send, train, average."""
    nodes = list(grid.get_node_ids())
    sent = [Message(_content(vector, task), dst_node_id=node, message_type="train") for node in nodes]
    total = torch.zeros_like(vector)
    replies = list(grid.send_and_receive(sent))
    if len(replies) != task["silos"]:
        raise RuntimeError(f"{len(replies)} of {task['silos']} silos answered")
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"a silo failed: {reply.error.reason}")
        total.add_(torch.from_numpy(reply.content["vector"].to_numpy_ndarrays()[0]))
    return total.div_(len(replies))


def _content(vector: Tensor, task: dict[str, Any] | None = None) -> RecordDict:
    records: dict[str, Any] = {"vector": ArrayRecord([vector.numpy()])}
    return RecordDict(records | ({"task": ConfigRecord(task)} if task else {}))


def main(model: str, silos: str, rounds: str) -> None:
    """Print what was found as one line of JSON."""
    print(json.dumps(simulate(model, int(silos), int(rounds))))
