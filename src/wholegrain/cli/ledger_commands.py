"""`ledger`: what was spent, and whether the account can be believed.

Accountants are imported where something is priced, because their import takes longer than all the rest.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wholegrain._json_numbers import finite, or_infinity
from wholegrain.cli import display
from wholegrain.cli.options import Json
from wholegrain.errors import LedgerError
from wholegrain.privacy.definitions import Unit
from wholegrain.privacy.ledger import Ledger
from wholegrain.privacy.ledger_entries import BudgetOpened
from wholegrain.privacy.ledger_state import LedgerState
from wholegrain.runs.ledger_registry import LEDGER, LedgerRegistry, ledger_path
from wholegrain.runs.spec import load

if TYPE_CHECKING:
    from wholegrain.privacy.accountants import Accountant
    from wholegrain.privacy.pricing import Price

app = typer.Typer(no_args_is_help=True, help="The account of everything that was released.")

Place = Annotated[Path, typer.Argument(help="A run's folder, a folder with a ledger.sqlite, or the file itself.")]


@app.command("show")
def show_ledger(place: Place, json: Json = False) -> None:
    """What was spent from each budget, for every unit, and by which runs."""
    with Ledger.open(_find(place), create=False) as ledger:
        facts = _facts(ledger)
    if json:
        display.as_json(facts)
        return
    for account in facts["accounts"]:
        _print(account)
    for data in facts["data"]:
        if data["budgets"] > 1:
            _print_data(data)
    display.out.print(f"{facts['entries']} entries, verified; head {facts['head']}", soft_wrap=True)


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
        display.as_json({"ledger": str(path), "entries": found.number, "head": found.hash, "whole": True})
    else:
        display.out.print(f"The ledger is whole: {found.number} entries, head {found.hash}", soft_wrap=True)


@app.command()
def adopt(
    place: Place, data: Annotated[str, typer.Option(help="The data whose account this ledger shall keep.")]
) -> None:
    """Let this ledger keep the account of a data set on this machine: after a move, or a copy that was put back."""
    path = _find(place)
    with Ledger.open(path, create=False) as ledger:
        LedgerRegistry.here().adopt(data, ledger)
        entries = ledger.head.number
    display.out.print(f"'{path}' ({entries} entries) now keeps the account of the data '{data}'.", soft_wrap=True)


@app.command()
def forget(data: Annotated[str, typer.Argument(help="The data whose ledger is gone for good.")]) -> None:
    """Begin anew with a data set: what was ever spent of it is not known on this machine any more."""
    known = LedgerRegistry.here().forget(data)
    display.out.print(
        f"The account of the data '{data}' was in '{known.path}' ({known.number} entries). It is forgotten here: what"
        " was spent does not count any more, and whoever answers for the data should know that.",
        soft_wrap=True,
    )


@app.command()
def backup(
    place: Place, folder: Annotated[Path, typer.Argument(help="A new folder for the copy.")], json: Json = False
) -> None:
    """Copy a ledger, its witness file and the machine's list of ledgers, as of one instant."""
    from wholegrain.runs.ledger_backup import back_up

    head = back_up(_find(place), folder)
    if json:
        display.as_json({"copy": str(folder), "entries": head.number, "head": head.hash})
    else:
        display.out.print(f"Copied to '{folder}': {head.number} entries, head {head.hash}", soft_wrap=True)


@app.command("restore")
def restore_ledger(
    folder: Annotated[Path, typer.Argument(help="The copy that `ledger backup` made.")], place: Place
) -> None:
    """Put a copy in the place of a ledger; one that knows less than this machine remembers is refused."""
    from wholegrain.runs.ledger_backup import restore

    path = _find(place)
    head = restore(folder, path)
    display.out.print(f"'{path}' is the copy in '{folder}': {head.number} entries, head {head.hash}", soft_wrap=True)


@app.command("verify-log")
def verify_activity(
    log: Annotated[Path, typer.Argument(help="A silo's activity.jsonl, or the folder in which it is.")],
    key: Annotated[Path | None, typer.Option(help="The silo's public key: every line must be signed with it.")] = None,
) -> None:
    """Read every line of a silo's log against the hash of the one before, and against the silo's key."""
    from wholegrain.deploy.activity_log import FILE, verify_log
    from wholegrain.deploy.certificates import load_public_key

    try:
        signer = None if key is None else load_public_key(key.read_text(encoding="utf-8"), str(key))
    except (OSError, ValueError) as error:
        raise LedgerError(f"The key '{key}' cannot be read.") from error
    lines, head = verify_log(log / FILE if os.path.isdir(log) else log, signer)
    display.out.print(f"The log is whole: {lines} lines, the last with hash {head}", soft_wrap=True)


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
    state = ledger.state
    return {
        "ledger": str(ledger.path),
        "entries": ledger.head.number,
        "head": ledger.head.hash,
        **(_prices(state) if state.budgets else {"accounts": [], "data": []}),
    }


def _prices(state: LedgerState) -> dict[str, Any]:
    """What was spent from every budget, and of every data set."""
    from wholegrain.privacy.accountants import accountant

    pricing = accountant("pld")
    return {
        "accounts": [_account(state, opened, pricing) for opened in state.budgets.values()],
        "data": [_data(state, data, pricing) for data in dict.fromkeys(account.data for account in state.budgets)],
    }


def _data(state: LedgerState, data: str, pricing: "Accountant") -> dict[str, Any]:
    """All that was ever spent of a data set, over every budget that was opened on it, at the smallest of their δ."""
    from wholegrain.privacy.statement import data_price

    budgets = [opened for account, opened in state.budgets.items() if account.data == data]
    delta = min(opened.delta for opened in budgets)
    return {
        "data": data,
        "budgets": len(budgets),
        "delta": delta,
        "spent": {str(unit): _price(data_price(state, data, unit, pricing, delta)) for unit in Unit},
    }


def _price(found: "Price") -> dict[str, Any]:
    return {"epsilon": finite(found.epsilon), "accountant": found.way}


def _account(state: LedgerState, opened: BudgetOpened, pricing: "Accountant") -> dict[str, Any]:
    from wholegrain.privacy.statement import account_price, run_price

    account, runs = opened.account, state.runs_of(opened.account)
    return {
        "data": account.data,
        "budget": account.budget,
        "unit": str(opened.unit),
        "epsilon": opened.epsilon,
        "delta": opened.delta,
        "spent": {str(unit): _price(account_price(opened, runs, pricing, unit)) for unit in Unit},
        "runs": [
            {
                "run": run.opening.run,
                "policy": run.opening.policy,
                "noise": run.opening.noise,
                "spec": run.opening.spec,
                "silos": len(run.reserved),
                "steps_reserved": sum(run.reserved.values()),
                "steps_released": sum(run.released.values()),
                "silo_rounds_replayed": run.replayed,
                "spent": _price(run_price(run, opened.unit, pricing, opened.delta)),
            }
            for run in runs
        ],
    }


def _print(account: dict[str, Any]) -> None:
    limit = "no limit" if account["epsilon"] is None else f"ε = {account['epsilon']:g}"
    title = f"Budget '{account['budget']}' of the data '{account['data']}': {limit} for each {account['unit']}"
    units = ("unit", f"ε spent, δ = {account['delta']:g}", "accountant")
    display.out.print(display.table(title, units, _spent_rows(account["spent"])))
    rows = [
        (
            run["run"],
            run["policy"],
            run["noise"],
            run["silos"],
            run["steps_reserved"],
            run["steps_released"],
            _number(run["spent"]["epsilon"]),
            run["spent"]["accountant"],
        )
        for run in account["runs"]
    ]
    columns = ("run", "policy", "noise", "silos", "steps reserved", "released", "ε spent", "accountant")
    display.out.print(display.table("Runs", columns, rows))


def _print_data(data: dict[str, Any]) -> None:
    title = f"The data '{data['data']}', over all {data['budgets']} budgets that were ever opened on it"
    columns = ("unit", f"ε spent, δ = {data['delta']:g}", "accountant")
    display.out.print(display.table(title, columns, _spent_rows(data["spent"])))


def _spent_rows(spent: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(unit, _number(found["epsilon"]), found["accountant"]) for unit, found in spent.items()]


def _number(epsilon: float | None) -> str:
    return display.number(or_infinity(epsilon))
