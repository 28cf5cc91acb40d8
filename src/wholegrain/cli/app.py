"""The command `wholegrain`: its verbs, and the one place where an error becomes a line and an exit code."""

import os
import re
import sys
import warnings
from typing import Annotated, Any, NoReturn

import click
import typer

import wholegrain
from wholegrain import _check
from wholegrain.cli import display
from wholegrain.cli.plugins import PluginGroup
from wholegrain.errors import WholegrainError

app = typer.Typer(
    cls=PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Subject-level differential privacy for cross-silo federated learning.",
)

WITHOUT_TORCH = {"federation", "ledger", "server"}
"""Commands that never compute with torch, or see to it themselves, and need not wait for its import."""


def _version(asked: bool) -> None:
    if asked:
        display.out.print(f"wholegrain {wholegrain.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Subject-level differential privacy for cross-silo federated learning."""
    if context.invoked_subcommand not in WITHOUT_TORCH:
        _use_one_thread()


def _use_one_thread() -> None:
    """Results then do not depend on the number of cores, and small models run faster for it."""
    import torch

    torch.set_num_threads(1)


def _notice(message: Warning | str, *where: Any, **more: Any) -> None:
    """A warning as one line; whose code it came from is of no use to whoever typed a command."""
    display.err.print(f"notice: {message}", markup=False, soft_wrap=True)


def main() -> None:
    """Run the command; an error on purpose is one sentence on standard error and exit code 2."""
    warnings.showwarning = _notice
    try:
        sys.exit(app(standalone_mode=False, prog_name="wholegrain"))
    except click.exceptions.NoArgsIsHelpError:  # which has printed the help
        sys.exit(2)
    except click.UsageError as error:
        _refuse(_explain(error))
    except WholegrainError as error:
        _refuse(str(error))
    except click.Abort:
        sys.exit(display.INTERRUPTED)
    except Exception as error:  # a fault of ours: still one line, with the way to the rest
        if os.environ.get("WHOLEGRAIN_DEBUG"):
            raise
        _refuse(f"{type(error).__name__}: {_check.reason(error)} (unforeseen; WHOLEGRAIN_DEBUG=1 shows where).")


def _refuse(sentence: str) -> NoReturn:
    # A name out of a spec may hold line breaks; whoever reads the error wants one line.
    display.err.print(f"error: {' '.join(sentence.splitlines())}", markup=False, soft_wrap=True)
    sys.exit(2)


def _explain(error: click.UsageError) -> str:
    """What the option parser did not understand, and where its options are listed."""
    command = error.ctx.command_path if error.ctx else "wholegrain"
    said, *near = re.split(r"\. \(?Did you mean ", error.format_message().rstrip("."))  # told twice, for a command
    hint = f" (did you mean {near[0].partition('?')[0]}?)" if near else ""
    return f"{said}{hint}; see {command} -h."
