"""`hasten cache`: the items that were kept for later runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hasten.errors import HastenError

if TYPE_CHECKING:
    from hasten.instrument.cache_folder import Entry

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.command()
@click.option("--clear", is_flag=True, help="Remove all that no running process uses.")
def command(clear: bool) -> None:
    """List the decoded items that `cache-items` keeps for later runs, with their sizes.

    They lie under XDG_CACHE_HOME/hasten, or ~/.cache/hasten. Those that were unused for longest
    make room for new ones by themselves.
    """
    from hasten.instrument import cache_folder

    if cache_folder.base() is None:
        raise HastenError("there is no home folder to keep anything in: set XDG_CACHE_HOME")
    if not clear:
        click.echo(_listing(cache_folder.entries(), str(cache_folder.folder())), nl=False)
        return
    try:
        count, size = cache_folder.clear()
    except OSError as error:
        raise HastenError(f"not everything could be removed: {error}", 1) from error
    busy = len(cache_folder.entries())
    left = f"; {_counted(busy)} in use" if busy else ""
    click.echo(f"removed {_counted(count)}, {human(size)}{left}")


def _listing(entries: Sequence[Entry], where: str) -> str:
    if not entries:
        return f"nothing is kept in {where}\n"
    lines = [f"{'size':>10}  {'last used':<16}  what"]
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        state = " (in use)" if entry.busy else ""
        lines.append(f"{human(entry.size):>10}  {used}  {entry.what}{state}")
    total = human(sum(entry.size for entry in entries))
    lines.append(f"{total:>10}  in {_counted(len(entries))}, {where}")
    return "\n".join(lines) + "\n"


def _counted(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"


def human(size: float) -> str:
    """Bytes for a reader."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
