"""What the commands that can write a report as a web page share."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hasten.errors import HastenError

#: `--html PATH`, for every command that measures.
html_option = click.option(
    "--html",
    "html",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Also write a report as one web page, which opens offline.",
)


#: `--trace PATH`, for commands that have a timeline.
trace_option = click.option(
    "--trace",
    "trace",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Also write typical iterations as a trace, which Perfetto and Chrome open.",
)


def check_page(path: Path | None, option: str = "--html") -> None:
    """Make sure that a file can be written, before anything is measured.

    Args:
        path: the file's; None: none is asked for.
        option: that it was given by.

    Raises:
        HastenError: it can't.
    """
    if path is None:
        return
    if path.is_dir():
        problem = "it is a directory"
    elif not path.parent.is_dir():
        problem = f"there is no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "it may not be written"
    else:
        return
    raise HastenError(f"the report can't be written to {path}: {problem}; see {option}")


def write_page(page: str, path: Path) -> None:
    """Write a report, and say where.

    Raises:
        HastenError: it could not be delivered (exit code 1).
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        problem = error.strerror or str(error)
        raise HastenError(f"the report can't be written to {path}: {problem}", 1) from error
    click.echo(f"hasten: report written to {path}", err=True)
