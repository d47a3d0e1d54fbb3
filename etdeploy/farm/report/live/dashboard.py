"""Writes the dashboard as static pages into a folder."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.core.text.shell import quoted
from etdeploy.farm.report.files import PAGE_FILE
from etdeploy.farm.report.live.pages import INDEX, Board, addresses, page_of
from etdeploy.history.nights import storable
from etdeploy.report.html.page import render


def write_dashboard(board: Board, folder: Path) -> Path:
    """Writes every page; pages of earlier nights that are there already stay.

    Args:
        board: What is shown.
        folder: Made if it is missing; the folder that it is in has to exist.

    Returns:
        The path of the first page.

    Raises:
        UsageError: The folder cannot be used, or a file in it is not one of etdeploy's pages;
            nothing was written then.
        OSError: The disk is full.
    """
    _make(folder)
    pages = [(address, inside(folder, address)) for address in addresses(board)]
    for _, path in pages:
        PAGE_FILE.require_free(path)
    # The first page last: what it leads to is there then.
    for address, path in reversed(pages):
        page = page_of(board, address)
        if page is not None:
            PAGE_FILE.write(storable(render(page)), path)
    return (folder / INDEX).absolute()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        raise UsageError(
            "the folder that the dashboard's folder belongs in does not exist",
            place=str(folder.parent),
            remedy=f"Create it: mkdir -p {quoted(folder.parent)}",
        ) from error
    except OSError as error:
        raise UsageError(
            f"the dashboard's folder cannot be made: {error.strerror or error}",
            place=str(folder),
            remedy="Name another folder: --dashboard FOLDER",
        ) from error
