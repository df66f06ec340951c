"""`hasten diagnose`: where each iteration's time goes, what holds it back, and what to do."""

from __future__ import annotations

from pathlib import Path

import click

from hasten.commands.program import (
    ScriptCommand,
    Seconds,
    json_option,
    script_arguments,
    shield_option,
    timeout_option,
)
from hasten.commands.report import check_page, html_option, trace_option, write_page


@click.command(cls=ScriptCommand)
@click.option(
    "--budget", type=Seconds(), default=60.0, show_default=True, help="Seconds of measuring, about."
)
@json_option
@html_option
@trace_option
@shield_option
@timeout_option
def command(
    budget: float,
    as_json: bool,
    html: Path | None,
    trace: Path | None,
    shield: str,
    timeout: float,
    module: bool,
    argv: tuple[str, ...],
) -> int:
    """Show where SCRIPT's time goes and what holds it back.

    The script runs unedited for as many iterations as are needed. Each finding names your line and
    what it costs, measured on the running loop. None of your files is changed.
    """
    from hasten.commands.script import check

    arguments = script_arguments(module, argv)
    check(arguments)
    check_page(html)
    check_page(trace, "--trace")
    from hasten.findings import judge
    from hasten.tuning.diagnosing import DiagnoseRequest, diagnose

    request = DiagnoseRequest(arguments, budget, shield, timeout)
    diagnosis, covered = diagnose(request, lambda text: click.echo(f"hasten: {text}", err=True))
    verdicts = judge(diagnosis)
    if html is not None:
        from hasten.report.html.diagnosis_page import diagnosis_page

        write_page(diagnosis_page(diagnosis, verdicts, covered, arguments), html)
    if trace is not None:
        from hasten.report.trace import chrome_trace

        timelines = diagnosis.observed.timeline, diagnosis.examined.timeline
        write_page(chrome_trace(*timelines, script=" ".join(arguments)), trace)
    if as_json:
        import json

        from hasten.report.diagnosis import document

        found = document(diagnosis, verdicts, covered, arguments)
        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return 0
    from hasten.report.diagnosis_terminal import render

    click.echo(render(diagnosis, verdicts, covered), nl=False)
    return 0
