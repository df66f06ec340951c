"""`hasten env`: what the machine is and what limits it."""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show what this machine is and what limits training on it."""
    from hasten.environment import look

    environment = look()
    if as_json:
        import json

        click.echo(json.dumps(environment.describe(), indent=2))
        return
    from hasten.report.machine import render

    click.echo(render(environment), nl=False)
