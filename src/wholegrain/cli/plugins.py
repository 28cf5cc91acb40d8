"""Commands that other packages add to `wholegrain`.

A package registers a command as an entry point of the group `wholegrain.commands`; the entry point's name is what one
types, its object a function with typer's annotations or a `typer.Typer`:

    [project.entry-points."wholegrain.commands"]
    reproduce = "wholegrain_reproduction.command:reproduce"

A plug-in is imported when its command is called or listed, never earlier, and cannot replace a command of wholegrain's
own. One that cannot be imported keeps its place in the list: calling it says in one sentence what is wrong with it.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

import click

from wholegrain import _check
from wholegrain.cli.command_table import CommandTable, make_command
from wholegrain.errors import SpecError

GROUP = "wholegrain.commands"


class PluginGroup(CommandTable):
    """The commands of an app, then those of plug-ins in alphabetical order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names that can be called."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(_plugins()) - set(own))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; one of the app's own comes before any plug-in."""
        own = super().get_command(ctx, cmd_name)
        plugin = None if own else _plugins().get(cmd_name)
        return own if plugin is None else load_command(plugin)


def load_command(plugin: EntryPoint) -> click.Command:
    """The command of a plug-in, or one in its place that says why it cannot be used."""
    try:
        command = make_command(plugin.load())
    except (Exception, SystemExit) as error:  # it is somebody else's code: whatever it does, other commands still work
        return _make_placeholder(plugin, error)
    command.name = plugin.name
    return command


def _plugins() -> dict[str, EntryPoint]:
    # Sorted, so that of two plug-ins of one name the same one is taken on every call.
    found: Iterable[EntryPoint] = sorted(entry_points(group=GROUP), key=lambda entry: entry.value, reverse=True)
    return {entry.name: entry for entry in found}


def _make_placeholder(plugin: EntryPoint, error: BaseException) -> click.Command:
    package = f" of the package '{plugin.dist.name}'" if plugin.dist else ""
    reason = f"{type(error).__name__}: {_check.reason(error)}"

    def refuse() -> None:
        raise SpecError(
            f"The command '{plugin.name}'{package} cannot be loaded from '{plugin.value}' ({reason}); install the"
            " package anew, or remove it."
        )

    return click.Command(
        plugin.name,
        callback=refuse,
        add_help_option=False,  # `--help` is answered by the sentence, too
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        short_help=f"Cannot be loaded ({reason}).",
    )
