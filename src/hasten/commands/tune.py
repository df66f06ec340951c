"""`hasten tune`: a measured search for what makes a script's training faster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hasten.commands.program import (
    ScriptCommand,
    Seconds,
    item_seeds_option,
    json_option,
    script_arguments,
    shield_option,
    timeout_option,
)
from hasten.commands.report import check_page, html_option, write_page

if TYPE_CHECKING:
    from hasten.plan import Plan
    from hasten.records import Outcome

_INTERRUPTED = 130


@click.command(cls=ScriptCommand)
@click.option(
    "--budget", type=Seconds(), default=180.0, show_default=True, help="Seconds of measuring."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where the plan goes; hasten.toml beside the script when not given.",
)
@json_option
@html_option
@click.option("--repeat", is_flag=True, help="Restart a script that ends too soon.")
@click.option(
    "--allow",
    type=click.Choice(["statistics"]),
    multiple=True,
    help="Also try what changes random streams or batches.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Try only this; may be repeated.")
@click.option("--skip", multiple=True, metavar="NAME", help="Do not try this; may be repeated.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "xpu", "mps"]),
    help="Also try this accelerator for a script that trains on the CPU.",
)
@shield_option
@timeout_option
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of blocks.")
@click.option(
    "--curves",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Pairs of runs, each from seeds of its own, whose losses are compared at the end.",
)
@item_seeds_option
def command(
    budget: float,
    output: Path | None,
    as_json: bool,
    html: Path | None,
    repeat: bool,
    allow: tuple[str, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    device: str | None,
    shield: str,
    timeout: float,
    seed: int,
    curves: int,
    item_seeds: bool,
    module: bool,
    argv: tuple[str, ...],
) -> int:
    """Find what makes SCRIPT's training faster.

    The script runs unedited. Alternatives take turns on its own loop until one is surely faster;
    what wins and is proven to train the same becomes a plan. None of your files is changed.
    """
    arguments = script_arguments(module, argv)
    path = _check(arguments, output, (*only, *skip))
    check_page(html)
    from hasten.report.progress import progress
    from hasten.tuning import session
    from hasten.tuning.plans import make_plan

    request = session.TuneRequest(
        argv=arguments,
        budget=budget,
        repeat=repeat,
        allow=frozenset(allow),
        only=only,
        skip=skip,
        device=device,
        shield=shield,
        timeout=timeout,
        seed=seed,
        item_seeds=item_seeds,
        curves=curves,
    )
    with progress(budget) as listener:
        outcome = session.tune(request, listener)
    plan = make_plan(arguments, outcome, item_seeds)
    written = _write(plan, path, outcome)
    if html is not None:
        from hasten.report.html.tuning_page import tuning_page

        write_page(tuning_page(outcome, plan, written), html)
    _report(outcome, plan, written, as_json)
    return _INTERRUPTED if outcome.interrupted else 0


def _check(arguments: tuple[str, ...], output: Path | None, names: tuple[str, ...]) -> Path:
    """Everything that can be known to be wrong before the script starts; the plan's path."""
    from hasten import optimisations
    from hasten.commands.script import check, folder
    from hasten.plan import FILE_NAME, writable

    check(arguments)
    for name in names:
        optimisations.named(name)
    path = output or folder(arguments) / FILE_NAME
    writable(path)
    return path


def _write(plan: Plan, path: Path, outcome: Outcome) -> Path | None:
    """Write the plan, also an empty one, which says that nothing helped; returns where."""
    from hasten.plan import dump

    if outcome.interrupted and not plan.setting:
        return None  # nothing is known that could replace an older plan
    dump(plan, path)
    return path


def _report(outcome: Outcome, plan: Plan, written: Path | None, as_json: bool) -> None:
    if as_json:
        import json

        from hasten.report.document import document

        click.echo(json.dumps(document(outcome, plan, written), indent=2, allow_nan=False))
        return
    from hasten.report.terminal import render

    shown = None if written is None else Path(os.path.relpath(written))
    click.echo(render(outcome, plan, shown), nl=False)
