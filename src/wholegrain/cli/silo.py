"""`silo`: run one silo of a federation, under the rules of its own charter."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display
from wholegrain.cli.options import Json
from wholegrain.errors import SpecError


def silo(
    policy_file: Annotated[Path, typer.Option(help="The silo's charter: silo.toml.")],
    check: Annotated[bool, typer.Option("--check", help="Say where charter, data and ledger stand, and end.")] = False,
    json: Json = False,
) -> None:
    """Answer a federation's server, as far as the charter and the ledger allow."""
    try:
        from wholegrain.deploy.charter import load_charter, require_files
        from wholegrain.deploy.client import open_silo
        from wholegrain.deploy.silo_service import operator_status
        from wholegrain.deploy.supernode_worker import run_silo
    except ModuleNotFoundError as error:
        raise SpecError("A silo needs Flower: install wholegrain[flower].") from error
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    charter = load_charter(policy_file)
    if not check:
        run_silo(charter)
        return
    if charter.link is not None:
        require_files(charter.link)
    with open_silo(charter) as host:
        facts = operator_status(host)
    if json:
        display.as_json(facts)
    else:
        display.out.print(
            display.table(
                f"Silo '{charter.silo}'", ("what", "is"), [(name, _plain(value)) for name, value in facts.items()]
            )
        )


def _plain(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
