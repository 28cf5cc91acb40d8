"""The command `wholegrain`: its verbs, and the one place where an error becomes a line and an exit code."""

import os
import sys
import warnings
from typing import Annotated, Any

import torch
import typer

import wholegrain
from wholegrain import _check
from wholegrain.cli import (
    account_commands,
    audit,
    bounds,
    data,
    demo,
    display,
    federation,
    ledger_commands,
    pretrain,
    report_commands,
    run_commands,
    silo,
)
from wholegrain.cli.plugins import PluginGroup
from wholegrain.errors import WholegrainError

app = typer.Typer(
    cls=PluginGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Subject-level differential privacy for cross-silo federated learning.",
)
app.command()(run_commands.run)
app.command()(run_commands.resume)
app.command()(run_commands.plan)
app.command()(pretrain.pretrain)
app.command()(account_commands.account)
app.command()(account_commands.calibrate)
app.command()(bounds.bounds)
app.command()(demo.demo)
app.command()(silo.silo)
app.command("audit")(audit.command)
app.command()(report_commands.report)
app.command()(report_commands.watch)
app.add_typer(data.app, name="data")
app.add_typer(ledger_commands.app, name="ledger")
app.add_typer(federation.app, name="federation")


def _version(asked: bool) -> None:
    if asked:
        display.out.print(f"wholegrain {wholegrain.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Subject-level differential privacy for cross-silo federated learning."""


def _notice(message: Warning | str, *where: Any, **more: Any) -> None:
    """A warning as one line; whose code it came from is of no use to whoever typed a command."""
    display.err.print(f"notice: {message}", markup=False, soft_wrap=True)


def main() -> None:
    """Run the command; an error on purpose is one sentence on standard error and exit code 2."""
    # One thread: results then do not depend on the number of cores, and small models run faster for it.
    torch.set_num_threads(1)
    warnings.showwarning = _notice
    try:
        app()
    except WholegrainError as error:
        # A name out of a spec may hold line breaks; whoever reads the error wants one line.
        display.err.print(f"error: {' '.join(str(error).splitlines())}", markup=False, soft_wrap=True)
        sys.exit(2)
    except Exception as error:  # a fault of ours: still one line, with the way to the rest
        if os.environ.get("WHOLEGRAIN_DEBUG"):
            raise
        kind = type(error).__name__
        display.err.print(
            f"error: {kind}: {_check.reason(error)} (unforeseen; WHOLEGRAIN_DEBUG=1 shows where).",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(2)
