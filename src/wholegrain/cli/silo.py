"""`silo`: run one silo of a federation, under the rules of its own charter."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display
from wholegrain.cli.log_lines import log_in_lines
from wholegrain.cli.options import Json
from wholegrain.errors import SpecError


def silo(
    charter_file: Annotated[Path, typer.Option("--charter", help="The silo's charter: silo.toml.")] = Path("silo.toml"),
    check: Annotated[bool, typer.Option("--check", help="Say where charter, data and ledger stand, and end.")] = False,
    json: Json = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve /health and /metrics on this port of 127.0.0.1.")
    ] = None,
    policy_file: Annotated[Path | None, typer.Option(hidden=True, help="The charter's former name.")] = None,
) -> None:
    """Answer a federation's server, as far as the charter and the ledger allow."""
    try:
        from wholegrain.deploy.charter import load_charter, require_files
        from wholegrain.deploy.fleet_link import run_silo
        from wholegrain.deploy.silo_answers import open_silo
        from wholegrain.deploy.silo_service import operator_status
    except ModuleNotFoundError as error:
        raise SpecError("A silo needs Flower: pip install 'wholegrain[flower]'.") from error
    log_in_lines()
    charter = load_charter(policy_file or charter_file)
    if not check:
        run_silo(charter, metrics_port)
        return
    if charter.link is not None:
        require_files(charter.link)
    with open_silo(charter) as host:
        facts = operator_status(host)
    if json:
        display.as_json(facts)
    else:
        rows = [(name, display.plain(value)) for name, value in facts.items()]
        display.out.print(display.table(f"Silo '{charter.silo}'", ("what", "is"), rows))
