"""The command line: one file a subcommand, each thin, and each loaded only when it is called."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from hasten.commands.program import program, usage_line
from hasten.errors import HastenError

_CLOSED_PIPE = 1  # as click has it
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: without the program's name; those of this process when None.
    """
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `hasten ... | head`: nobody reads any more
        status = _CLOSED_PIPE
        with contextlib.suppress(OSError):
            # The interpreter flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int:
    """The exit status of one command; errors become one line on standard error."""
    try:
        given = None if arguments is None else list(arguments)
        status = program.main(given, prog_name="hasten", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except HastenError as error:
        if error.detail:
            click.echo(error.detail.rstrip("\n"), err=True)
        return _say(str(error), error.exit_code)
    except click.UsageError as error:
        return _say(usage_line(error), 2)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted before anything was known", _INTERRUPTED)


def _say(line: str, status: int) -> int:
    click.echo(f"hasten: {line}", err=True)
    return status
