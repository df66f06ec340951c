"""`hasten batch`: what another batch size would give and take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from hasten.commands.program import (
    ScriptCommand,
    Seconds,
    json_option,
    script_arguments,
    shield_option,
    timeout_option,
)

if TYPE_CHECKING:
    from hasten.tuning.batch_records import Measured


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers above zero, separated by commas."""

    name = "sizes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers in order; anything else is a usage error."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(re.fullmatch(r"\s*[1-9][0-9]{0,8}\s*", part) for part in parts):
            self.fail(f"{value!r} is not a list of batch sizes such as 16,32,64", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


class Memory(click.ParamType):  # type: ignore[type-arg]
    """An amount of memory such as 8GiB or 500MB."""

    name = "memory"
    _UNITS: ClassVar = {
        "": 1,
        "k": 10**3,
        "m": 10**6,
        "g": 10**9,
        "ki": 2**10,
        "mi": 2**20,
        "gi": 2**30,
    }

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes; anything else is a usage error."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?|)b?\s*", str(value).lower())
        amount = float(found[1]) * self._UNITS[found[2]] if found else 0.0
        if amount < 1:
            self.fail(f"{value!r} is not an amount of memory such as 8GiB", param, ctx)
        return int(amount)


@click.command(cls=ScriptCommand)
@click.option(
    "--budget",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Seconds of measuring, about.",
)
@click.option("--sizes", type=Sizes(), default=(), metavar="N,N,...", help="Only these sizes.")
@click.option(
    "--fit-memory",
    type=Memory(),
    metavar="SIZE",
    help="What the training may take, such as 8GiB; tries what makes your batch size fit.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="With --fit-memory or --allow statistics: write a plan, for hasten run --plan PATH.",
)
@click.option(
    "--allow",
    type=click.Choice(["statistics"]),
    help="With --output: the plan may change the batch size, and learning rates with it.",
)
@json_option
@shield_option
@timeout_option
def command(
    budget: float,
    sizes: tuple[int, ...],
    fit_memory: int | None,
    output: Path | None,
    allow: str | None,
    as_json: bool,
    shield: str,
    timeout: float,
    module: bool,
    argv: tuple[str, ...],
) -> int:
    """Show what another batch size would give SCRIPT, and take.

    Throughput and memory are measured at a few sizes, each in a process of its own; what fits is
    predicted and tried once. How much a sample is worth in a larger batch is told by the noise of
    the gradients, so that the advice is what reaches a loss soonest. None of your files is changed.
    """
    from hasten.commands.script import check, find

    arguments = script_arguments(module, argv)
    check(arguments)
    from hasten.plan import writable
    from hasten.report.batches import render
    from hasten.tuning.batch_document import document
    from hasten.tuning.batch_records import BatchRequest
    from hasten.tuning.batches import measure

    if output is not None:
        if fit_memory is None and allow is None:
            raise click.UsageError("--output goes with --fit-memory or --allow statistics")
        writable(output)
    elif allow is not None:
        raise click.UsageError("--allow goes with --output: by itself hasten batch changes nothing")
    request = BatchRequest(arguments, find(arguments), budget, sizes, fit_memory, shield, timeout)
    measured = measure(request, _say)
    found = document(measured)
    if output is not None:
        _write(arguments, measured, allow is not None, output)
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2, allow_nan=False))
        return 0
    click.echo(render(found), nl=False)
    return 0


def _say(text: str) -> None:
    click.echo(f"hasten: {text}", err=True)


def _write(arguments: tuple[str, ...], measured: Measured, statistics: bool, path: Path) -> None:
    """Write what makes it fit, or else the advised batch size where that is allowed; say which."""
    from hasten.plan import dump
    from hasten.tuning.batch_advice import changing
    from hasten.tuning.fitting import best
    from hasten.tuning.plans import plan_of

    saving = best(measured.savings, measured.limit)
    setting = saving.setting if saving is not None else {}
    if not setting and statistics:
        setting = changing(measured)
    if not setting:
        _say(f"no plan written to {path}: there is nothing to change")
        return
    dump(plan_of(arguments, measured.profile, setting), path)
    _say(f"plan written to {path}; next: hasten run --plan {path} {' '.join(arguments)}")
