"""Who is turned away from a real federation over TLS, and that nothing is spent that was not released.

Silos are real processes here; where the server has to be hostile, it runs in the test itself.
"""

import contextlib
import shutil
import ssl
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.proto.message_pb2 import PushObjectRequest

from deployment import as_toml, charter_tree, table
from loopback import PATIENCE, Federation, rounds_of, running, write_silo
from red_team import Line, MaliciousServer
from wholegrain.deploy.certificates import Authority, load_private_key, private_text, silo_key
from wholegrain.deploy.charter import LinkSpec
from wholegrain.deploy.fleet_app import PATHS
from wholegrain.deploy.fleet_grid import FleetGrid
from wholegrain.deploy.fleet_link import open_client
from wholegrain.deploy.fleet_server import ServerDoor, open_door
from wholegrain.deploy.membership import revoke_silo
from wholegrain.engines import wire
from wholegrain.engines.flower import FORGED, SILENT
from wholegrain.privacy.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.exact_prices, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three silos with secure noise that look for their server."""
    with running(tmp_path_factory.mktemp("real"), noise="secure") as made:
        yield made


def spent(federation: Federation, name: str) -> tuple[int, int]:
    """Steps that a silo has reserved and released, over all runs."""
    with Ledger.open(federation.silo(name) / "ledger.sqlite", create=False) as ledger:
        runs = list(ledger.state.runs.values())
    return sum(run.reserved.get(name, 0) for run in runs), sum(run.released.get(name, 0) for run in runs)


def door(federation: Federation, certificate: Path | None = None) -> ServerDoor:
    server = certificate or federation.server
    return ServerDoor(
        "127.0.0.1", federation.port, server / "server.crt", server / "server.key", federation.server / "roster.toml"
    )


def stranger(federation: Federation) -> httpx.Client:
    """Somebody who has the authority's certificate, which is public, and nothing else."""
    context = ssl.create_default_context(cafile=federation.server / "ca.crt")
    return httpx.Client(base_url=f"https://127.0.0.1:{federation.port}", verify=context, timeout=PATIENCE)


def test_strangers_impostors_and_revoked_silos_are_turned_away_from_a_run(federation: Federation) -> None:
    server = federation.write_server("open", rounds=200, patience=15.0)
    run = server / "run"
    federation.stop(federation.silos["south"])
    charter = federation.silo("south") / "silo.toml"
    honest = charter.read_text()
    charter.write_text(honest.replace('silo = "south"', 'silo = "north"').replace("of south", "of a false north"))
    federation.start_silo("south")  # with south's own key, and north's name
    process = federation.start_server(server)
    federation.wait_until(lambda: len(rounds_of(run)) >= 1, process)
    assert "calls itself 'north' without that silo's key: it is refused" in (server / "server.log").read_text()

    with stranger(federation) as caller:
        for path in ("/", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/control/register-node", "/health"):
            assert caller.get(path).status_code == 404
            assert caller.post(path, content=b"").status_code == 404
        for path in PATHS:
            assert caller.post(path, content=b"x").status_code == 403
        # The door is shut before the body is read: a long one finds it closed in the middle.
        huge = 400 * 2**20
        with contextlib.suppress(httpx.TransportError):
            assert caller.post("/v1/fleet/push-object", content=bytes(huge)).status_code == 403
    key = load_private_key((federation.silo("west") / "key").read_bytes(), "key")
    link = LinkSpec(
        address=f"127.0.0.1:{federation.port}", certificates=str(federation.server / "ca.crt"), key="unused"
    )
    with open_client(link, key, 2**20) as client:
        request = PushObjectRequest(object_content=bytes(huge))
        with pytest.raises(httpx.HTTPError):  # 413, or a line that is cut in the middle
            client.PushObject(request)

    passing = shutil.ignore_patterns("*-journal")  # of a ledger that is written meanwhile
    folder = shutil.copytree(federation.silo("west"), federation.silo("stranger"), ignore=passing)
    (folder / "key").write_bytes(private_text(silo_key()))
    write_silo(federation, "stranger", data="west", noise="secure")
    unknown = federation.start_silo("stranger")
    assert unknown.wait(PATIENCE) == 2, federation.logs()
    assert "does not know this silo's key" in (folder / "silo.log").read_text().splitlines()[-1]

    revoke_silo(server, "west")
    assert federation.silos["west"].wait(PATIENCE) == 2, federation.logs()
    done = len(rounds_of(run))
    federation.wait_until(lambda: len(rounds_of(run)) >= done + 2, process)
    process.terminate()
    assert process.wait(PATIENCE) == 130, federation.logs()
    federation.stop(federation.silos["south"])
    charter.write_text(honest)

    lines = rounds_of(run)
    faults = [{fault["silo"]: fault["reason"] for fault in line["faults"]} for line in lines]
    assert {each["south"] for each in faults} == {"it is not connected"}, faults
    assert {each["north"] for each in faults if "north" in each} <= {SILENT}, faults  # on a busy machine
    assert "west" in faults[-1]
    assert not any(reason == FORGED and silo == "north" for each in faults for silo, reason in each.items())
    assert not (federation.silo("south") / "refusals.jsonl").exists()
    for name in ("north", "west"):
        reserved, released = spent(federation, name)
        assert reserved == released > 0


def test_a_server_whose_certificate_has_expired_is_left_alone(federation: Federation, tmp_path: Path) -> None:
    authority = federation.folder / "federation" / "authority"
    signer = Authority.load((authority / "ca.crt").read_bytes(), (authority / "ca.key").read_bytes())
    identity = signer.server(("127.0.0.1",), valid=timedelta(minutes=-1))
    folder = federation.write_server("expired", rounds=1)
    (folder / "server.crt").write_bytes(identity.certificate)
    (folder / "server.key").write_bytes(identity.key)
    federation.serve(folder, code=2)
    assert "expired on" in (folder / "server.log").read_text()
    before = spent(federation, "north")
    with open_door(door(federation, folder)):  # a server that does not care
        assert federation.silos["north"].wait(PATIENCE) == 2, federation.logs()
    assert "has no valid certificate of this federation" in federation.said_by("north").splitlines()[-1]
    assert spent(federation, "north") == before


def line_over(grid: FleetGrid) -> Line:
    """Messages to the one node that is connected, all sent at once, and its answers in the order of the messages."""

    def send(messages: Sequence[Message]) -> list[Message]:
        end = time.monotonic() + PATIENCE
        while not (nodes := list(grid.get_node_ids())):
            assert time.monotonic() < end
            time.sleep(0.05)
        posted = [
            Message(
                each.content,
                dst_node_id=nodes[0],
                message_type=each.metadata.message_type,
                group_id=each.metadata.group_id,
                ttl=PATIENCE,
            )
            for each in messages
        ]
        sent = list(grid.push_messages(posted))
        assert len(set(sent)) == len(messages)
        found: dict[str, Message] = {}
        while len(found) < len(sent):
            assert time.monotonic() < end
            replies = grid.pull_messages(set(sent) - set(found))
            found |= {reply.metadata.reply_to_message_id: reply for reply in replies}
            time.sleep(0.05)
        return [found[id] for id in sent]

    return send


def test_copies_of_a_round_and_a_message_of_400_mb_cost_nothing(federation: Federation) -> None:
    name = "south"
    path = federation.silo(name) / "limited.toml"
    own = table(str(federation.folder / "data" / f"{name}.csv"))
    link = {"address": f"127.0.0.1:{federation.port}", "certificates": "ca.crt", "key": "key"}
    sizes = dict(zip(("items", "subjects"), federation.sizes[name], strict=True))
    limit = {"epsilon": 5.0, "smallest_noise": 1.0}
    ledger = {"data": "copies", "path": "copies.sqlite"}
    path.write_text(
        as_toml(
            charter_tree(
                silo=name, data={"source": "table", "table": own}, limit=limit, sizes=sizes, link=link, ledger=ledger
            )
        )
    )

    def steps() -> tuple[int, int]:
        with Ledger.open(federation.silo(name) / "copies.sqlite", create=False) as found:
            runs = list(found.state.runs.values())
        return sum(run.reserved.get(name, 0) for run in runs), sum(run.released.get(name, 0) for run in runs)

    for running_silo in federation.silos.values():
        federation.stop(running_silo)
    process = federation.start_silo(name, charter="limited.toml")
    with open_door(door(federation)) as (grid, _):
        server = MaliciousServer(line_over(grid))
        try:
            (huge,) = server.sends_oversized(10**8)
            assert huge.rule == "message"
            assert "longer than" in federation.said_by(name)
            assert steps() == (0, 0)

            copies = server.floods(12)
            assert sorted(each.rule for each in copies) == ["", *["message"] * 11]
            assert steps() == (2, 2)

            again = server.asks_again(12)
            granted = [each for each in again if not each.rule]
            assert 0 < len(granted) < 12, "each is a release of its own, and the budget ends"
            refused = [each for each in again if each.rule]
            assert {wire.read_answer(each.reply)["refused"] for each in refused} == {
                "[limit.epsilon] the silo's budget does not allow this release"
            }
            assert all(set(each.reply.content) == {wire.ANSWER} for each in refused)
            assert steps() == (2 + 2 * len(granted),) * 2
        finally:
            federation.stop(process)  # before the port is closed, or its line would be cut
