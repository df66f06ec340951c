"""`hasten verify`: whether training under the plan comes out as well as without it."""

from __future__ import annotations

import re
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
)
from hasten.commands.report import check_page, html_option, write_page
from hasten.errors import HastenError

if TYPE_CHECKING:
    from hasten.plan import Plan

#: Exit codes: the plan holds; it is worse or breaks something; these runs can't tell.
HOLDS, BROKEN, CANNOT_TELL = 0, 1, 4
_ITERATIONS = 200


@click.command(cls=ScriptCommand)
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The plan; hasten.toml beside the script when not given.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Pairs of runs, each from seeds of its own.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=2),
    help=f"Of each run; {_ITERATIONS}, and with --metric-regex to the script's own end.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0, min_open=True),
    help="How much higher the final loss may be; the spread between seeds when not given.",
)
@click.option(
    "--metric-regex",
    metavar="REGEX",
    help="A number in the script's output, in ( ); its last match is compared as well.",
)
@click.option(
    "--metric-margin",
    type=click.FloatRange(min=0, min_open=True),
    help="How much worse the metric may be, in its units; the spread between seeds otherwise.",
)
@click.option("--metric-lower", is_flag=True, help="A lower metric is better.")
@item_seeds_option
@html_option
@json_option
@shield_option
@click.option(
    "--timeout",
    type=Seconds(),
    default=600.0,
    show_default=True,
    help="Seconds until the first iterations.",
)
def command(
    plan_path: Path | None,
    seeds: int,
    iterations: int | None,
    margin: float | None,
    metric_regex: str | None,
    metric_margin: float | None,
    metric_lower: bool,
    item_seeds: bool,
    html: Path | None,
    as_json: bool,
    shield: str,
    timeout: float,
    module: bool,
    argv: tuple[str, ...],
) -> int:
    """Verify that SCRIPT trains under its plan as well as without it.

    Both train over the same first iterations from the same seeds, several times. Samples, steps,
    learning rates and checkpoints have to be the same, and the final loss not worse beyond a
    margin. None of your files is changed.

    Exit codes: 0 the plan holds, 1 it is worse or breaks something, 4 these runs can't tell,
    2 bad input, 3 the trial can't be run here.
    """
    arguments = script_arguments(module, argv)
    check_page(html)
    plan = _check(arguments, plan_path, metric_regex, metric_margin, metric_lower)
    from hasten.tuning import verifying

    if iterations is None and metric_regex is None:
        iterations = _ITERATIONS
    request = verifying.VerifyRequest(
        argv=arguments,
        setting=plan.setting,
        seeds=seeds,
        iterations=iterations,
        margin=margin,
        metric=metric_regex,
        metric_margin=metric_margin,
        lower_is_better=metric_lower,
        item_seeds=item_seeds or plan.item_seeds,
        shield=shield,
        timeout=timeout,
    )
    found = verifying.verify(request, lambda text: click.echo(f"hasten: {text}", err=True))
    from hasten.report import verification as report

    if html is not None:
        from hasten.environment import look
        from hasten.report.html.verification_page import verification_page

        write_page(verification_page(found, arguments, look().describe()), html)
    if as_json:
        import json

        click.echo(json.dumps(report.document(found), indent=2, allow_nan=False))
    else:
        click.echo(report.render(found), nl=False)
    return {verifying.HOLDS: HOLDS, verifying.BROKEN: BROKEN}.get(found.verdict, CANNOT_TELL)


def _check(
    arguments: tuple[str, ...],
    path: Path | None,
    regex: str | None,
    margin: float | None,
    lower: bool,
) -> Plan:
    """Everything that can be known to be wrong before the script starts; the plan."""
    from hasten.commands.script import check, folder
    from hasten.plan import FILE_NAME, load

    check(arguments)
    if regex is None and (margin is not None or lower):
        raise click.UsageError("--metric-margin and --metric-lower need --metric-regex")
    try:
        groups = re.compile(regex or "").groups
    except re.error as error:
        raise HastenError(f"--metric-regex is not a regular expression: {error}") from None
    if groups > 1:
        raise HastenError("--metric-regex: one group ( ) for the number; others as (?: )")
    plan = load(path or folder(arguments) / FILE_NAME)
    if not plan.setting:
        raise HastenError("the plan holds no settings: there is nothing to verify")
    return plan
