"""`federation`: begin a federation, join it, and decide who may take part."""

from pathlib import Path
from typing import Annotated

import typer

from wholegrain.cli import display
from wholegrain.errors import SpecError

app = typer.Typer(no_args_is_help=True, help="Federations of real silos.")

Server = Annotated[Path, typer.Option("--server", help="The server's folder.")]


@app.callback()
def federations() -> None:
    """Federations of real silos."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    silos: Annotated[
        list[str], typer.Option("--silo", help="A silo on this machine, once for each; others join by invitation.")
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    host: Annotated[str, typer.Option(help="Name or address under which silos reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the server.")] = 8443,
) -> None:
    """Write an authority, the server's certificate, an invitation, and templates to be filled in."""
    from wholegrain.deploy.scaffold import FederationDraft, write_federation

    write_federation(FederationDraft(tuple(silos), host, port), folder)
    _say(f"Server:     {folder / 'server'} (fill in spec.toml and roster.toml)")
    _say(f"Authority:  {folder / 'authority'} (its key renews the server's certificate; keep it elsewhere)")
    _say(f"Invitation: {folder / 'invitation.toml'} (for the operators of silos elsewhere)")
    for silo in silos:
        _say(f"Silo:       {folder / silo} (fill in silo.toml)")


@app.command()
def join(
    invitation: Annotated[Path, typer.Argument(help="The invitation that the server's operator sent.")],
    name: Annotated[str, typer.Argument(help="The silo's name.")],
    out: Annotated[Path | None, typer.Option(help="A new folder; the silo's name by default.")] = None,
    items: Annotated[int | None, typer.Option(min=1, help="About how many records the silo trains on.")] = None,
    subjects: Annotated[int | None, typer.Option(min=1, help="About how many people they are of.")] = None,
    items_per_subject: Annotated[int | None, typer.Option(min=1, help="K, the most records of one person.")] = None,
) -> None:
    """Make a silo's key, charter and request, on the silo's own machine; the request alone goes to the server."""
    from wholegrain.deploy.certificates import fingerprint
    from wholegrain.deploy.scaffold import join_federation, read_invitation

    folder = out or Path(name)
    known = {"items": items, "subjects": subjects, "items_per_subject": items_per_subject}
    sizes = {size: value for size, value in known.items() if value is not None}
    request = join_federation(read_invitation(invitation), name, folder, sizes)
    _say(f"Silo:    {folder} (fill in silo.toml; the key in it never leaves this machine)")
    _say(f"Request: {folder / f'{name}.request'} (send it to the server's operator)")
    _say(f"Key:     {fingerprint(request.key)} (tell it to the server's operator by another way)")


@app.command("add-silo")
def add_silo(
    name: Annotated[str, typer.Argument(help="The silo's name.")],
    request: Annotated[Path, typer.Argument(help="The request that its operator sent.")],
    server: Server = Path("server"),
) -> None:
    """Admit a silo by its request, or take over its new key."""
    from wholegrain.deploy import membership
    from wholegrain.deploy.admission_request import read_request
    from wholegrain.deploy.certificates import fingerprint

    found = read_request(request)
    membership.add_silo(server, name, found)
    _say(f"Silo '{name}' is admitted with the key {fingerprint(found.key)} (compare it with its operator's).")


@app.command("add-peer")
def add_peer(
    request: Annotated[Path, typer.Argument(help="The request of another silo.")],
    silo: Annotated[Path, typer.Option("--silo", help="The folder of the silo whose charter takes the key.")] = Path(
        "."
    ),
) -> None:
    """Put another silo's key into a silo's charter, for secure sums and to watch over its ledger."""
    from wholegrain.deploy import scaffold
    from wholegrain.deploy.admission_request import read_request
    from wholegrain.deploy.certificates import fingerprint

    found = read_request(request)
    scaffold.add_peer(silo, found)
    _say(f"Silo '{found.silo}' is a peer with the key {fingerprint(found.key)} (compare it with its operator's).")


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="The silo's name.")], server: Server = Path("server")) -> None:
    """Turn a silo away from now on, also from a server that is running."""
    from wholegrain.deploy.membership import revoke_silo

    revoke_silo(server, name)
    _say(f"Silo '{name}' is revoked; a server that is running turns it away within seconds.")


@app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="The folder of a server, or of a silo.")],
    authority: Annotated[
        Path | None, typer.Option(help="The authority's folder; by default the one beside the server's.")
    ] = None,
) -> None:
    """Renew a server's certificate and key, or a silo's key."""
    from wholegrain.deploy.membership import renew_server, renew_silo

    if (folder / "server.crt").exists():
        renew_server(folder, authority or folder.parent / "authority")
        _say(f"New key and certificate in '{folder}'; they are used when the server starts again.")
    elif (folder / "silo.toml").exists():
        _say(f"New key in '{folder}'. Send '{renew_silo(folder)}' to the server's operator, who runs add-silo again.")
    else:
        raise SpecError(f"'{folder}' is the folder of neither a server nor a silo.")


def _say(line: str) -> None:
    display.out.print(line, markup=False, soft_wrap=True)
