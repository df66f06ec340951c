"""The report of `hasten tune` for a person: 80 columns, plain where there is no terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rich.text import Text

from hasten.plan import Plan
from hasten.records import PHASES, Outcome, Profile, Tried
from hasten.report import machine, verification
from hasten.report.document import default, script
from hasten.report.phrases import (
    COUNTED,
    count,
    duration,
    has_bars,
    interval,
    label,
    loop,
    run_command,
    times,
    value,
    width,
    with_interval,
)

_BAR = 40  # columns of a bar for the whole iteration
_LABEL = 33  # columns for what was tried
_ELSEWHERE = "not applicable"
_VAGUE = 2.0  # an interval this many times wider than its lower end says nothing
_STYLES = {"faster": "green", "slower": "red", "refused": "yellow", "failed": "red"}
_PHASES = {"data": "data wait", "optimizer": "optimizer step"}


def render(
    outcome: Outcome, plan: Plan, written: Path | None, stream: IO[str] | None = None
) -> str:
    """The whole report.

    Args:
        outcome: what was found.
        plan: the plan made of it.
        written: where the plan was written; None when it was not.
        stream: where the text will go, which decides on colours and width; stdout when None.
    """
    stream = stream or sys.stdout
    columns = width(stream)
    lines = [*_about(outcome, columns), Text(), *_anatomy(outcome, has_bars(stream)), Text()]
    lines += [*_table(outcome.tried, columns), Text(), *_result(outcome, plan, columns)]
    lines += [
        *_trains(outcome, columns),
        *_small_print(outcome, columns),
        *_next(outcome, plan, written),
    ]
    return machine.text(lines, stream)


def _wrap(text: str, columns: int, indent: str = "", style: str = "") -> list[Text]:
    lines = textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        break_on_hyphens=False,
    )
    return [Text(line, style=style) for line in lines]


def _about(outcome: Outcome, columns: int) -> list[Text]:
    lines = _wrap(f"machine: {machine.line(outcome.environment)}", columns)
    for limit in outcome.environment.get("limits", ()):
        lines += _wrap(limit, columns, "  ", "yellow")
    found = "; ".join(loop(outcome.profile))
    return lines + _wrap(f"training loop: {found}", columns)


# --- where the time goes ---------------------------------------------------------------------


def _anatomy(outcome: Outcome, blocks: bool) -> list[Text]:
    profile = outcome.profile
    watched = count(len(profile.iteration_seconds), "watched iteration")
    heading = f"an iteration takes {1000 * profile.iteration:.1f} ms (mean of {watched})"
    lines = [Text(heading, style="bold")]
    lines += [_phase(name, profile, blocks) for name in PHASES]
    if outcome.data_free is not None and outcome.data_free.high < _VAGUE * outcome.data_free.low:
        ceiling = f"with all data at hand it would be {with_interval(outcome.data_free)} as fast"
        lines.append(Text(f"  {ceiling}"))
    return lines


def _phase(name: str, profile: Profile, blocks: bool) -> Text:
    seconds = profile.phases.get(name, 0.0)
    share = seconds / profile.iteration if profile.iteration else 0.0
    bar = ("\u2588" if blocks else "#") * round(_BAR * min(1.0, share))
    figures = f"  {_PHASES.get(name, name):<15}{1000 * seconds:9.1f} ms {100 * share:4.0f} %  "
    return Text.assemble(figures, (bar, "cyan"))


# --- what was tried ----------------------------------------------------------------------------


def _table(tried: tuple[Tried, ...], columns: int) -> list[Text]:
    heading = _row("tried", "", "ratio", "interval", "verdict", "class")
    heading.stylize("bold")
    lines = [heading]
    measured = [entry for entry in tried if entry.verdict != _ELSEWHERE]
    for before, entries in _by_reference(measured).items():
        if before not in ("", "baseline"):
            lines += _wrap(f"on top of {before}:", columns, style="dim")
        for entry in entries:
            lines += _entry(entry, columns)
    return [*lines, *([] if measured else [Text("  nothing")]), *_elsewhere(tried, columns)]


def _by_reference(tried: list[Tried]) -> dict[str, list[Tried]]:
    """What was tried, by what it came on top of; first the baseline, then in order of time."""
    groups: dict[str, list[Tried]] = {"baseline": []}
    for entry in tried:
        groups.setdefault(entry.against or "baseline", []).append(entry)
    return groups


def _elsewhere(tried: tuple[Tried, ...], columns: int) -> list[Text]:
    """What is for other scripts or machines, each with its reason, in one paragraph a reason."""
    names: dict[str, list[str]] = {}
    for entry in tried:
        if entry.verdict == _ELSEWHERE:
            names.setdefault(entry.reason, []).append(entry.name)
    lines = [Text(f"{_ELSEWHERE}:")] if names else []
    for reason, those in names.items():
        lines += _wrap(f"{', '.join(those)}: {reason}", columns, "  ", "dim")
    return lines


def _row(label: str, style: str, *cells: str) -> Text:
    ratio, between, verdict, numerics = cells
    text = Text(f"{label:<{_LABEL}} {ratio:>6}  {between:<13} ")
    return text.append(f"{verdict:<15}", style=style or None).append(numerics)


def _label(entry: Tried) -> list[str]:
    """What was tried in as many lines as it takes, each part of several on one of its own."""
    lines: list[str] = []
    for part in label(entry).split(" + "):
        text = f"  + {part}" if lines else part
        lines += textwrap.wrap(text, _LABEL, subsequent_indent="    " if lines else "  ")
    return lines


def _entry(entry: Tried, columns: int) -> Iterator[Text]:
    """A row, and below it the reason and the pay-back if any."""
    first, *more = _label(entry)
    figures = times(entry.ratio), interval(entry.low, entry.high), entry.verdict, entry.numerics
    yield _row(first, _STYLES.get(entry.verdict, ""), *figures)
    yield from (Text(line) for line in more)
    if entry.reason:
        yield from _wrap(entry.reason, columns, "    ", "dim")
    if entry.payback_iterations is not None:
        iterations = count(entry.payback_iterations, "iteration")
        first = f"{entry.compile_seconds:.0f} s of compiling are won back after {iterations}"
        if not entry.compile_seconds:  # kept items: the epoch that fills gains nothing
            first = f"an epoch has to fill it first: won back after {iterations}"
        yield Text(f"    {first}", style="dim")


# --- what it comes to --------------------------------------------------------------------------


def _result(outcome: Outcome, plan: Plan, columns: int) -> list[Text]:
    if not plan.setting:
        return _wrap(_nothing(outcome), columns, style="bold")
    parts = [f"{name} {value(what)}".strip() for name, what in plan.setting.items()]
    lines = _wrap(f"plan: {'; '.join(parts)}", columns, style="bold")
    return lines + _wrap(_confirmed(outcome), columns, style="bold green")


def _confirmed(outcome: Outcome) -> str:
    if outcome.confirmed is None:
        return "The gain was not confirmed from end to end: the search ended before that."
    figures = with_interval(outcome.confirmed)
    if outcome.confirmed_verdict == "faster":
        return f"Confirmed from end to end: {figures} as fast as the script is."
    return (
        f"From end to end {figures} as fast, which the time did not suffice to confirm: "
        "a larger --budget can tell."
    )


def _trains(outcome: Outcome, columns: int) -> list[Text]:
    """What was compared of the training itself: counts, and losses from several seeds."""
    lines: list[Text] = []
    if outcome.counted and not outcome.broken:
        over = count(outcome.counted, "iteration")
        lines += _wrap(f"counted over {over} of both, and the same: {COUNTED}", columns)
    found = outcome.verified
    if found is not None and found.pairs:
        lines += _wrap(verification.runs(found), columns)
        for text in verification.compared(found):
            indent = "    " if text.startswith("  ") else "  "
            lines += _wrap(text.strip(), columns, indent)
    return lines


def _nothing(outcome: Outcome) -> str:
    if outcome.interrupted:
        return "Nothing was found to be faster before the search was interrupted."
    unsure = sum(entry.verdict == "cannot tell" for entry in outcome.tried)
    if unsure:
        return (
            f"Nothing was surely faster. {count(unsure, 'candidate')} could not be told from the "
            "script as it is: a larger --budget, or a quieter machine, can tell."
        )
    return (
        "This script is already as fast as it gets: nothing that applies to it is measurably "
        "faster on this machine and safe."
    )


def _small_print(outcome: Outcome, columns: int) -> list[Text]:
    compiling = outcome.compile_seconds
    took = f"measured for {duration(outcome.seconds)}"
    took += f" and compiled for {duration(compiling)}" if compiling >= 1 else ""
    lines = _wrap(f"{took}, {count(outcome.iterations, 'iteration')}", columns)
    if outcome.shield:
        lines += _wrap(f"shield: {outcome.shield.removeprefix('shield ')}", columns)
    for note in (*outcome.profile.notes, *outcome.notes):
        lines += _wrap(f"note: {note}", columns, style="yellow")
    return lines


def _next(outcome: Outcome, plan: Plan, written: Path | None) -> list[Text]:
    """What to type now. Not wrapped, so that it can be copied."""
    if outcome.interrupted:
        kept = "and kept" if written is not None else "and nothing was written"
        lines = [Text(f"interrupted: this is what was known until then, {kept}")]
    else:
        lines = []
    if written is None:
        return lines
    lines.append(Text(f"written to {written}"))
    if plan.setting:
        command = run_command(script(plan), None if default(plan, written) else written)
        lines += [Text(), Text.assemble("next:  ", (command, "bold"))]
    return lines
