"""`ledger show` and `ledger verify`: what was spent, and whether the account can be believed."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from wholegrain.cli import show
from wholegrain.cli.pricing import Json
from wholegrain.errors import LedgerError
from wholegrain.privacy.accountants import Accountant, accountant
from wholegrain.privacy.book import Book
from wholegrain.privacy.exposure import price
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.records import Account, BudgetOpened
from wholegrain.privacy.units import Unit
from wholegrain.runs.accounts import LEDGER, ledger_path
from wholegrain.runs.spec import load
from wholegrain.runs.summary import finite

app = typer.Typer(no_args_is_help=True, help="The account of everything that was released.")

Place = Annotated[Path, typer.Argument(help="A run's folder, a folder with a ledger.sqlite, or the file itself.")]


@app.command("show")
def show_ledger(place: Place, json: Json = False) -> None:
    """What was spent from each budget, for every unit, and by which runs."""
    with Ledger.open(_find(place), create=False) as ledger:
        facts = _facts(ledger)
    if json:
        show.as_json(facts)
        return
    for account in facts["accounts"]:
        _print(account)
    show.out.print(f"{facts['entries']} entries, verified; head {facts['head']}", soft_wrap=True)


@app.command()
def verify(
    place: Place,
    head: Annotated[str | None, typer.Option(help="A head that was noted earlier: it must still be there.")] = None,
    json: Json = False,
) -> None:
    """Read every entry against the hash of the one before and against the witness file."""
    path = _find(place)
    with Ledger.open(path, create=False) as ledger:
        if head is not None:
            _require_head(ledger, head, path)
        found = ledger.head
    if json:
        show.as_json({"ledger": str(path), "entries": found.number, "head": found.hash, "whole": True})
    else:
        show.out.print(f"The ledger is whole: {found.number} entries, head {found.hash}", soft_wrap=True)


def _find(place: Path) -> Path:
    """The ledger that is meant: the file, the one in the folder, or the one that the folder's run wrote in."""
    if not os.path.isdir(place):
        return place
    if not (place / LEDGER).exists() and (place / "spec.json").exists():
        return ledger_path(load(place / "spec.json"), place) or place / LEDGER
    return place / LEDGER


def _require_head(ledger: Ledger, head: str, path: Path) -> None:
    hashes = ((number, ledger.hash_of(number)) for number in range(1, ledger.head.number + 1))
    if not any(head in (digest, f"{number} {digest}") for number, digest in hashes):
        raise LedgerError(f"The ledger '{path}' does not hold the head {head}: entries were cut off or replaced.")


def _facts(ledger: Ledger) -> dict[str, Any]:
    book, pricing = ledger.book, accountant("pld")
    return {
        "ledger": str(ledger.path),
        "entries": ledger.head.number,
        "head": ledger.head.hash,
        "accounts": [_account(book, account, opened, pricing) for account, opened in book.budgets.items()],
    }


def _account(book: Book, account: Account, opened: BudgetOpened, pricing: Accountant) -> dict[str, Any]:
    spent = book.spent(account)
    return {
        "data": account.data,
        "budget": account.budget,
        "unit": str(opened.unit),
        "epsilon": opened.epsilon,
        "delta": opened.delta,
        "spent": {str(unit): finite(price(spent, unit, pricing, opened.delta)) for unit in Unit},
        "runs": [
            {
                "run": run.opening.run,
                "policy": run.opening.policy,
                "noise": run.opening.noise,
                "spec": run.opening.spec,
                "silos": len(run.reserved),
                "steps_reserved": sum(run.reserved.values()),
                "steps_released": sum(run.released.values()),
            }
            for run in book.runs_of(account)
        ],
    }


def _print(account: dict[str, Any]) -> None:
    limit = "no limit" if account["epsilon"] is None else f"ε = {account['epsilon']:g}"
    title = f"Budget '{account['budget']}' of the data '{account['data']}': {limit} for each {account['unit']}"
    spent = [(unit, show.number(float("inf") if e is None else e)) for unit, e in account["spent"].items()]
    show.out.print(show.table(title, ("unit", f"ε spent, δ = {account['delta']:g}"), spent))
    rows = [
        (run["run"], run["policy"], run["noise"], run["silos"], run["steps_reserved"], run["steps_released"])
        for run in account["runs"]
    ]
    show.out.print(show.table("Runs", ("run", "policy", "noise", "silos", "steps reserved", "released"), rows))
