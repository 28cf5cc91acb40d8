"""`report` and `watch`: a run, or several side by side, as a page."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from wholegrain._files import write_whole
from wholegrain._loopback import LOOPBACK
from wholegrain.cli import display
from wholegrain.errors import RunError
from wholegrain.report.dpia import dpia_annex
from wholegrain.report.figure_export import export
from wholegrain.report.live_page import server
from wholegrain.report.page import page
from wholegrain.report.run_reader import may_begin_here, read_runs
from wholegrain.runs.run_folder import RunFolder

PAGE = b"<!doctype html>"
"""How a report and an annex begin."""
IN_PLACE = " (in place of an earlier one)"
Folders = Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")]


def report(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Also write every figure there, as SVG and PNG.")] = None,
    dpia: Annotated[
        Path | None, typer.Option(help="Also write an annex to a data-protection impact assessment (of one run).")
    ] = None,
) -> None:
    """Write one self-contained HTML page: what is promised, what happened, and the whole record."""
    if dpia is not None and len(folders) != 1:
        raise RunError(f"--dpia is about one run, and {len(folders)} are given; name one folder.")
    if dpia == out:
        raise RunError(f"--out and --dpia both name '{out}'; choose two names.")
    replaced = {path: _is_replaced(path) for path in (out, dpia) if path is not None}
    runs = read_runs(folders)
    if figures is not None:
        _write(figures, lambda folder: export(runs, folder))
    _write(out, lambda path: write_whole(path, page(runs).encode()))
    display.out.print(f"Report: {out}{IN_PLACE * replaced[out]}", markup=False, soft_wrap=True)
    if dpia is not None:
        _write(dpia, lambda path: write_whole(path, dpia_annex(runs[0]).encode()))
        display.out.print(f"Annex: {dpia}{IN_PLACE * replaced[dpia]}", markup=False, soft_wrap=True)


def _is_replaced(path: Path) -> bool:
    """Whether an earlier page gives way to this one; a file that is none is never overwritten."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            begins = file.read(len(PAGE))
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}.") from error
    if begins and begins != PAGE:
        raise RunError(f"'{path}' is there already and is no page of wholegrain; choose another name.")
    return bool(begins)


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}.") from error


def watch(
    folders: Folders,
    port: Annotated[int, typer.Option(help="A port of this machine; 0 takes one that is free.")] = 0,
) -> None:
    """Serve the same page to this machine alone; it follows every round, and waits for runs that are to come."""
    awaited = [folder for folder in folders if may_begin_here(folder)]
    for folder in awaited:
        display.err.print(f"No run has begun in '{folder}' yet: the page waits for it.", markup=False, soft_wrap=True)
    for folder in set(folders) - set(awaited):
        RunFolder.open(folder)
    with contextlib.suppress(KeyboardInterrupt):
        _serve(folders, port)


def _serve(folders: list[Path], port: int) -> None:
    try:
        serving = server(folders, port)
    except OSError as error:
        raise RunError(f"Port {port} cannot be used: {error.strerror}; choose another.") from error
    display.out.print(f"http://{LOOPBACK}:{serving.server_port}/ – Ctrl-C ends it", markup=False)
    with serving:
        serving.serve_forever()
