"""`hasten run`: become the script, with the plan applied."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hasten.commands.program import (
    ScriptCommand,
    Seconds,
    item_seeds_option,
    script_arguments,
)
from hasten.errors import HastenError

if TYPE_CHECKING:
    from hasten.plan import Plan


@click.command(cls=ScriptCommand)
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The plan; hasten.toml beside the script when not given. With --tune it is written.",
)
@click.option("--force", is_flag=True, help="Apply a plan made on another device or torch.")
@click.option("--watch", is_flag=True, help="Record iterations, change nothing.")
@click.option("--tune", is_flag=True, help="Tune during the first minutes, then go on.")
@click.option(
    "--budget",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="With --tune: seconds of measuring.",
)
@click.option(
    "--allow",
    type=click.Choice(["rounding"]),
    multiple=True,
    help="With --tune: also try what rounds in another way (bf16, fused, compiled).",
)
@item_seeds_option
def command(
    plan_path: Path | None,
    force: bool,
    watch: bool,
    tune: bool,
    budget: float,
    allow: tuple[str, ...],
    item_seeds: bool,
    module: bool,
    argv: tuple[str, ...],
) -> None:
    """Run SCRIPT with its plan.

    Without a plan this is plain Python. The process becomes the script: signals, the terminal and
    the exit code are the script's own.

    With --tune the first minutes of this training are what is measured: each sample is used once,
    in order, what is found stays on, and the plan is saved for the next time. Only what keeps the
    same bits is tried, unless --allow rounding is given.
    """
    from hasten.commands.script import check_name

    arguments = script_arguments(module, argv)
    _check_there(arguments)
    if tune:
        check_name(arguments)
        request = {"budget": budget, "classes": ["exact", *allow], "item_seeds": item_seeds}
        become(arguments, _tuning_environment(arguments, plan_path, request, watch or force))
    if item_seeds:
        raise click.UsageError("--item-seeds goes with --tune: otherwise the plan says it")
    if watch:
        check_name(arguments)
        become(arguments, _environment({}, {}, watch=True))
    plan = _find_plan(plan_path, arguments)
    if plan is None or not (plan.setting or plan.item_seeds):
        become(arguments, os.environ)
    check_name(arguments)
    _check_machine(plan, force)
    become(
        arguments,
        _environment(plan.setting, plan.fingerprint, watch=False, item_seeds=plan.item_seeds),
    )


def _check_there(arguments: tuple[str, ...]) -> None:
    """Only whether there is such a script: errors in it are for Python to show, as ever."""
    from hasten.commands.script import find

    if arguments[0] != "-m" and not Path(arguments[0]).is_dir():
        find(arguments)


def _find_plan(path: Path | None, arguments: tuple[str, ...]) -> Plan | None:
    from hasten.commands.script import folder
    from hasten.plan import FILE_NAME, load

    if path is not None:
        return load(path)
    beside = folder(arguments) / FILE_NAME
    if beside.exists():
        return load(beside)
    click.echo(
        f"hasten: no plan at {beside}: this is plain Python (hasten tune makes one)", err=True
    )
    return None


def _check_machine(plan: Plan, force: bool) -> None:
    """Refuse a plan whose evidence was measured elsewhere, unless told to go on."""
    from hasten.plan import differences, machine_fingerprint

    device = plan.fingerprint.get("device", "cpu").partition(":")[0]
    found = [d for d in differences(plan, machine_fingerprint(device)) if d.blocking]
    if not found:
        return
    what = "; ".join(str(difference) for difference in found)
    if not force:
        raise HastenError(f"the plan is not for this machine ({what}): tune again, or use --force")
    click.echo(f"hasten: forced, though the plan was made elsewhere ({what})", err=True)


def _environment(
    setting: dict[str, object], fingerprint: dict[str, str], watch: bool, item_seeds: bool = False
) -> dict[str, str]:
    from hasten.instrument.launch import environment_for_run

    return environment_for_run(
        setting=setting,
        fingerprint=fingerprint,
        watch=watch,
        env=os.environ,
        item_seeds=item_seeds,
    )


def _tuning_environment(
    arguments: tuple[str, ...],
    output: Path | None,
    request: dict[str, object],
    contradicted: bool,
) -> dict[str, str]:
    from hasten.commands.script import folder
    from hasten.instrument.launch import environment_for_call
    from hasten.plan import FILE_NAME, writable

    if contradicted:
        raise click.UsageError("--tune makes a plan: --watch and --force do not go with it")
    path = (output or folder(arguments) / FILE_NAME).absolute()
    writable(path)
    options = {
        "request": request,
        "arguments": list(arguments),
        "output": str(path),
    }
    return environment_for_call("hasten.commands.inside:start", options, os.environ)


def become(arguments: tuple[str, ...], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by Python with the script; does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    line = [sys.executable, *arguments]
    if sys.platform == "win32":  # exec there returns to the shell at once
        sys.exit(subprocess.call(line, env=env))
    os.execve(sys.executable, line, env)
