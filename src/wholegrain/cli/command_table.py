"""The commands of `wholegrain` by name; the module of a command is imported when the command is called.

torch and dp_accounting take seconds to import, and `wholegrain --help` needs neither: it lists this table. A test holds
every summary against the docstring that it repeats.
"""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, get_type_hints

import click
import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Row:
    """A command's name, where its function or `typer.Typer` is (`module:name`), and its help in one sentence."""

    name: str
    target: str
    summary: str

    def load(self) -> click.Command:
        """Import the module, and make the command."""
        module, _, attribute = self.target.partition(":")
        command = make_command(getattr(importlib.import_module(module), attribute))
        command.name = self.name
        return command


ROWS = (
    Row("run", "wholegrain.cli.run_commands:run", "Train as the spec says, and keep a record."),
    Row(
        "resume",
        "wholegrain.cli.run_commands:resume",
        "Go on with a run that was stopped, from its last whole checkpoint.",
    ),
    Row(
        "plan",
        "wholegrain.cli.run_commands:plan",
        "What a run would cost, before any training: noise, sampling, ε per unit, standing, rounds allowed.",
    ),
    Row(
        "tune",
        "wholegrain.cli.tune_command:tune",
        "Choose settings by private scores of random trials, with one proved ε for the chosen model.",
    ),
    Row(
        "pretrain",
        "wholegrain.cli.pretrain:pretrain",
        "Train a model on public data, without any privacy, as a start for private runs.",
    ),
    Row(
        "account",
        "wholegrain.cli.account_commands:account",
        "What so many steps with so much noise cost a subject, and an item beside it.",
    ),
    Row(
        "calibrate",
        "wholegrain.cli.account_commands:calibrate",
        "The least noise that meets a budget over all silos that may hold a subject.",
    ),
    Row(
        "bounds",
        "wholegrain.cli.bounds:bounds",
        "Upper bounds on the excess population loss of each algorithm, as the items per subject grow.",
    ),
    Row(
        "demo",
        "wholegrain.cli.demo:demo",
        "Train every policy at ε = 4, δ = 1e-5 over all 12 silos of a real table, and print what each protects.",
    ),
    Row(
        "silo",
        "wholegrain.cli.silo:silo",
        "Answer a federation's server, as far as the charter and the ledger allow.",
    ),
    Row(
        "server",
        "wholegrain.cli.server_command:server",
        "Train with the silos of a roster, over one open port; exit code 0 only for a run that came to its end.",
    ),
    Row("predict", "wholegrain.cli.predict:predict", "Predict the rows of a table with a trained model."),
    Row(
        "export",
        "wholegrain.cli.export:export",
        "Write a trained model as ONNX, with its columns, bounds, classes and guarantees in the metadata.",
    ),
    Row(
        "audit",
        "wholegrain.cli.audit:command",
        "Attack the training that a spec asks for: lower bounds on ε, held against what was proved.",
    ),
    Row(
        "report",
        "wholegrain.cli.report_commands:report",
        "Write one self-contained HTML page: what is promised, what happened, and the whole record.",
    ),
    Row(
        "watch",
        "wholegrain.cli.report_commands:watch",
        "Serve the same page to this machine alone; it follows every round, and waits for runs that are to come.",
    ),
    Row("data", "wholegrain.cli.data:app", "Data sets: what there is, and what one looks like."),
    Row("ledger", "wholegrain.cli.ledger_commands:app", "The account of everything that was released."),
    Row("federation", "wholegrain.cli.federation:app", "Federations of real silos."),
    Row("link", "wholegrain.cli.link:app", "In how many silos each subject is, without showing anybody an id."),
)


class Summary(click.Command):
    """A command that can be listed, and that is imported before it can be called."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.name, help=row.summary)
        self.row = row


class CommandTable(TyperGroup):
    """A group that lists the table's rows and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for row in ROWS:
            self.add_command(Summary(row))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments call, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.row.load() if isinstance(command, Summary) else command, rest


def make_command(found: object) -> click.Command:
    """The command of a `typer.Typer`, or of a function with typer's annotations."""
    if isinstance(found, typer.Typer):
        return _with_help(typer.main.get_group(found))
    if not callable(found):
        raise TypeError(f"a function or a typer.Typer is needed, not {type(found).__name__}")
    alone = typer.Typer(add_completion=False)
    alone.command()(found)
    return _with_help(typer.main.get_command(alone))


def _with_help(command: click.Command) -> click.Command:
    """With the help of arguments, which typer 0.20 loses to click 8.5: its arguments have a help of their own."""
    for inner in getattr(command, "commands", {}).values():
        _with_help(inner)
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    for argument in command.params:
        if isinstance(argument, click.Argument) and not getattr(argument, "help", None):
            declared = getattr(hints.get(argument.name or ""), "__metadata__", ())
            argument.help = next((each.help for each in declared if hasattr(each, "help")), None)
    return command
