"""`report` and `watch`: a run, or several side by side, as a page."""

import time
from pathlib import Path
from typing import Annotated

import typer

from wholegrain._files import write_whole
from wholegrain.cli import display
from wholegrain.errors import RunError
from wholegrain.report.figure_export import export
from wholegrain.report.live_page import LOOPBACK, server
from wholegrain.report.page import page
from wholegrain.report.run_reader import may_begin_here, read_runs

Folders = Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")]

PAUSE = 0.5
"""Seconds between two looks for a run that is to come."""


def report(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Also write every figure there, as SVG and PNG.")] = None,
) -> None:
    """Write one self-contained HTML page: what is promised, what happened, and the whole record."""
    runs = read_runs(folders)
    try:
        if figures is not None:
            export(runs, figures)
        write_whole(out, page(runs).encode())
    except OSError as error:
        raise RunError(f"'{out}' cannot be written: {error.strerror}.") from error
    display.out.print(f"Report: {out}", soft_wrap=True)


def watch(
    folders: Folders,
    port: Annotated[int, typer.Option(help="A port of this machine; 0 takes one that is free.")] = 0,
) -> None:
    """Serve the same page to this machine alone, made anew whenever a round is done; wait for runs that are to come."""
    try:
        _await(folders)
        read_runs(folders)
        _serve(folders, port)
    except KeyboardInterrupt:
        return


def _await(folders: list[Path]) -> None:
    """Until there is a run in every folder, or something else that will never be one."""
    told = False
    while awaited := [folder for folder in folders if may_begin_here(folder)]:
        if not told:
            display.err.print(f"Waiting for a run in '{awaited[0]}' – Ctrl-C ends it", markup=False, soft_wrap=True)
        told = True
        time.sleep(PAUSE)


def _serve(folders: list[Path], port: int) -> None:
    try:
        serving = server(folders, port)
    except OSError as error:
        raise RunError(f"Port {port} cannot be used: {error.strerror}; choose another.") from error
    display.out.print(f"http://{LOOPBACK}:{serving.server_port}/ – Ctrl-C ends it", markup=False)
    with serving:
        serving.serve_forever()
