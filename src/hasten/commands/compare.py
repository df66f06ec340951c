"""`hasten compare`: what changed from one diagnosis to another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hasten.commands.program import json_option

if TYPE_CHECKING:
    _Number = click.ParamType[float]
else:
    _Number = click.ParamType  # not generic in click 8.1

_SLOWER = 1


class Percent(_Number):
    """A share of at least zero: "5%", or 0.05 without the sign."""

    name = "percent"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The share; anything else is a usage error."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if not 0 <= share < math.inf:
            self.fail(f"{value!r} is not a share such as 5% or 0.05", param, ctx)
        return share


@click.command()
@click.option(
    "--fail-over",
    type=Percent(),
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Exit with 1 where an iteration is surely slower, by more than this.",
)
@json_option
@click.argument("before", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("after", metavar="B.json", type=click.Path(path_type=Path))
def command(fail_over: float, as_json: bool, before: Path, after: Path) -> int:
    """Show what changed from A.json to B.json, two documents of `hasten diagnose --json`.

    Changes come with the interval that the iterations of both runs allow. What changed of the
    machine between them is not in it: processor time and the load are shown beside.

    Exit codes: 0 no slower than allowed, or within the noise, 1 surely slower and by more than
    --fail-over, 2 bad input.
    """
    from hasten.report import comparison

    found = comparison.compare(comparison.load(before), comparison.load(after), fail_over)
    if as_json:
        import json

        click.echo(json.dumps(comparison.document(found), indent=2, allow_nan=False))
    else:
        click.echo(comparison.render(found), nl=False)
    return _SLOWER if found.failed else 0
