"""`hasten explain`: what an optimisation or a finding is, when it helps, what it risks."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Explain the optimisation or finding NAME; without a name, list all.

    The text is the documentation in its source file.
    """
    from hasten.report.explanation import find, listing, rendered

    click.echo(listing() if name is None else rendered(find(name)), nl=False)
