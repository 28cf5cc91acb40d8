"""`server`: run a federation's server, and end with an exit code that says how the run went."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from wholegrain.cli import display
from wholegrain.cli.log_lines import log_in_lines
from wholegrain.cli.options import Json
from wholegrain.errors import SpecError

if TYPE_CHECKING:
    from wholegrain.deploy.server_folder import ServerFolder

STOPPED = 130
"""The exit code of a run that was stopped before its end and can be continued."""

SUPERVISED = "WHOLEGRAIN_SUPERVISED"
"""Set for a process that is to end with its supervisor."""


def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder, as `federation init` makes it.")],
    check: Annotated[bool, typer.Option("--check", help="Say where the server stands, and end.")] = False,
    supervised: Annotated[
        bool,
        typer.Option(
            "--supervised/--unsupervised",
            help="Start again after a crash; a service manager that does so itself needs no second one.",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Train with the silos of a roster, over one open port; exit code 0 only for a run that came to its end."""
    if supervised and not check:
        _supervise(folder)
    try:
        from wholegrain.deploy.server_folder import open_folder, server_status
    except ModuleNotFoundError as error:
        raise SpecError("A server needs Flower: pip install 'wholegrain[flower]'.") from error
    log_in_lines()
    found = open_folder(folder)
    facts = server_status(found)
    if not check:
        _serve(found)
    elif json:
        display.as_json(facts)
    else:
        rows = [(name, display.plain(value)) for name, value in facts.items()]
        display.out.print(display.table(f"Server '{folder}'", ("what", "is"), rows))


def _supervise(folder: Path) -> None:
    from wholegrain.deploy.supervisor import supervise

    log_in_lines()
    os.environ[SUPERVISED] = "1"
    raise typer.Exit(supervise([sys.executable, "-m", "wholegrain", "server", str(folder), "--unsupervised"]))


def _serve(folder: "ServerFolder") -> None:
    import torch

    from wholegrain.deploy.supervisor import end_with_parent
    from wholegrain.report.model_card import write_card

    torch.set_num_threads(1)
    if os.environ.get(SUPERVISED):
        end_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    try:
        run = folder.run()
    except KeyboardInterrupt:
        display.err.print("Stopped; the same command goes on with the run.")
        raise typer.Exit(STOPPED) from None
    write_card(folder.path / "run")
    display.out.print(f"Finished after {len(run.rounds)} rounds: {folder.path / 'run'}", markup=False, soft_wrap=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
