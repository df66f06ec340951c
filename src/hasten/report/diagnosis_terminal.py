"""The report of `hasten diagnose` for a person: 80 columns, plain where there is no terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from typing import IO

from rich.text import Text

from hasten.diagnosis import FINE_PHASES, Place, WhatIf
from hasten.findings import Diagnosis, Kind, Verdict
from hasten.report import machine
from hasten.report.measured import STRETCHES, figures
from hasten.report.phrases import MIB, count, duration, has_bars, loop, width

_BAR = 30  # columns of a bar for the whole iteration
_NAMES = {"data": "data wait", "copy": "copies", "optimizer": "optimizer step"}
_BURSTS = 0.1  # share of a phase's time in bursts from which they are named
_STYLES = {Kind.WRONG: "bold red", Kind.RISK: "red", Kind.COST: "yellow", Kind.LIMIT: "cyan"}
_CODE = 72  # columns of a code line
_UNITS = ("%", "ms", "MiB", "GFLOP")
_LONG = 7 * 24 * 3600.0  # seconds; epochs beyond are a number that was set to be endless


def render(
    diagnosis: Diagnosis, verdicts: list[Verdict], shield: str, stream: IO[str] | None = None
) -> str:
    """The whole report.

    Args:
        diagnosis: what was measured.
        verdicts: what was found, in the order in which it is shown.
        shield: one line about what was protected.
        stream: where the text will go, which decides on colours and width; stdout when None.
    """
    stream = stream or sys.stdout
    columns = width(stream)
    lines = [*_about(diagnosis, columns), Text(), *_anatomy(diagnosis, has_bars(stream)), Text()]
    lines += [*_measured(diagnosis, columns), Text(), *_verdicts(diagnosis, verdicts, columns)]
    lines += [*_small_print(diagnosis, shield, columns)]
    return machine.text(lines, stream)


def _wrap(text: str, columns: int, indent: str = "", style: str = "") -> list[Text]:
    for unit in _UNITS:  # a figure and its unit stay in one line
        text = text.replace(f" {unit}", f"\u00a0{unit}")
    lines = textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )
    return [Text(line.replace("\u00a0", " "), style=style) for line in lines]


def _about(diagnosis: Diagnosis, columns: int) -> list[Text]:
    facts = diagnosis.environment.describe()
    lines = _wrap(f"machine: {machine.line(facts)}", columns)
    for limit in diagnosis.environment.limits:
        lines += _wrap(limit, columns, "  ", "yellow")
    lines += _wrap(f"training loop: {'; '.join(loop(diagnosis.profile))}", columns)
    if diagnosis.profile.device == "cpu":
        lines += _wrap("the model computes on the CPU: findings on GPUs do not apply", columns)
    return lines


# --- where the time goes -----------------------------------------------------------------------


def _anatomy(diagnosis: Diagnosis, blocks: bool) -> list[Text]:
    seen = diagnosis.observed
    wall = seen.wall
    heading = f"an iteration takes {1000 * wall.mean:.1f} ms (mean of {seen.iterations}"
    heading += f", from {1000 * wall.low:.1f} to {1000 * wall.high:.1f})"
    lines = [Text(heading, style="bold")]
    shown = [n for n in FINE_PHASES if n != "copy" or diagnosis.phase("copy")]
    lines += [_phase(name, diagnosis, blocks) for name in shown]
    if seen.trained_iterations:
        lines += _whole_run(diagnosis)
    return lines


def _phase(name: str, diagnosis: Diagnosis, blocks: bool) -> Text:
    seconds = diagnosis.phase(name)
    share = seconds / diagnosis.iteration if diagnosis.iteration else 0.0
    bar = ("\u2588" if blocks else "#") * round(_BAR * min(1.0, share))
    figures = f"  {_NAMES.get(name, name):<15}{1000 * seconds:9.1f} ms {100 * share:4.0f} %  "
    text = Text.assemble(figures, (bar, "cyan"))
    spread = diagnosis.observed.phases[name]
    if spread.bursts > _BURSTS and share > 0.05:
        text.append(f"  {100 * spread.bursts:.0f} % in bursts", style="dim")
    return text


def _whole_run(diagnosis: Diagnosis) -> Iterator[Text]:
    """What the run consists of besides plain iterations."""
    seen = diagnosis.observed
    extra = sum(stretch.seconds for stretch in seen.stretches)
    total = extra + seen.plain_seconds
    parts = [("plain iterations", seen.plain_iterations, seen.plain_seconds)]
    parts += [(STRETCHES.get(s.what, s.what), s.count, s.seconds) for s in seen.stretches]
    yield Text(
        f"since its loop began the run took {total:.1f} s, and {seen.startup_seconds:.1f} s "
        "to get there"
    )
    for what, number, seconds in parts:
        share = 100 * seconds / total if total else 0.0
        yield Text(f"  {what:<29}{seconds:7.1f} s {share:4.0f} %  {number:6d} times")


# --- ceilings, arithmetic, memory ----------------------------------------------------------------


def _measured(diagnosis: Diagnosis, columns: int) -> list[Text]:
    lines = [Text("measured what-ifs and limits", style="bold")]
    more = (f"{name}: {value}" for name, value in figures(diagnosis))
    for text in (*_ceilings(diagnosis), *more, *_hardware(diagnosis), *_speed(diagnosis)):
        lines += _wrap(text, columns, "  ")
    return lines


def _ceilings(diagnosis: Diagnosis) -> Iterator[str]:
    free, loader = diagnosis.ceilings.data_free, diagnosis.examined.loader
    if free is not None and free.pairs:
        yield f"with data free (the same batch each time) an iteration takes {_what_if(free)}"
    copies = diagnosis.ceilings.copies_free
    if copies is not None and copies.pairs:
        yield f"with copies between devices free an iteration takes {_what_if(copies)}"
    if loader is None:
        return
    if loader.unknown:
        yield f"the loader by itself could not be timed: {loader.unknown}"
    elif loader.fetch is not None and loader.collate is not None:
        text = f"a batch ({loader.batch_bytes / MIB:.2f} MiB) takes one process "
        text += f"{1000 * loader.fetch:.1f} ms, {1000 * loader.collate:.1f} ms of it collating"
        if loader.alone is not None:
            text += f"; the loader alone gives one every {1000 * loader.alone:.1f} ms"
        yield text
        slow = [t for t in loader.transforms if t.seconds > 0.05 * loader.fetch]
        if slow:
            yield "transforms, for a batch: " + ", ".join(
                f"{t.name} {1000 * t.seconds:.1f} ms" for t in slow
            )


def _what_if(what_if: WhatIf) -> str:
    times = what_if.before / what_if.after if what_if.after else 0.0
    text = f"{1000 * what_if.after:.1f} ms instead of {1000 * what_if.before:.1f} ({times:.2f}x)"
    return text if what_if.sure else text + ", which is within the noise"


def _hardware(diagnosis: Diagnosis) -> Iterator[str]:
    examined, facts = diagnosis.examined, diagnosis.observed.facts.get("processor", {})
    if examined.peaks:
        peaks = ", ".join(f"{d} {p / 1e9:.0f}" for d, p in sorted(examined.peaks.items()))
        achieved = ""
        if examined.flops and diagnosis.iteration:
            speed = examined.flops / diagnosis.iteration / 1e9
            achieved = (
                f"{speed:.1f} GFLOP/s achieved ({examined.flops / 1e9:.2f} GFLOP an iteration); "
            )
        yield f"{achieved}a large matmul reaches {peaks} GFLOP/s"
    if "own" in facts:
        usable = diagnosis.environment.usable_cores
        yield (
            f"{facts['own']:.1f} of {usable:g} usable cores used, "
            f"{facts['others']:.1f} by other programs"
        )
    if examined.peak_memory:
        text = f"memory: {examined.peak_memory / MIB:.0f} MiB at most"
        growth = examined.memory_last - examined.memory_first
        if examined.memory_first and growth > 0:
            text += f", {growth / MIB:.0f} MiB more than when the loop began"
        if examined.device_peak_memory is not None:
            text += f"; {examined.device_peak_memory / MIB:.0f} MiB on the GPU"
        yield text


def _speed(diagnosis: Diagnosis) -> Iterator[str]:
    loader, overall = diagnosis.profile.loader, diagnosis.overall
    tokens = diagnosis.examined.facts.get("tokens", 0)
    if tokens and overall:
        yield f"{tokens / overall:,.0f} tokens/s over the whole run, {tokens:,} an iteration"
    if loader is None or not loader.batch_size or not overall:
        return
    text = f"{loader.batch_size / overall:,.1f} samples/s over the whole run"
    if diagnosis.profile.iterations_per_epoch:
        epoch = diagnosis.profile.iterations_per_epoch * overall
        if epoch < _LONG:
            length = count(diagnosis.profile.iterations_per_epoch, "iteration")
            text += f", an epoch of {length} takes "
            text += duration(epoch) if epoch >= 10 else f"{epoch:.1f} s"
    yield text


# --- findings ------------------------------------------------------------------------------------


def _verdicts(diagnosis: Diagnosis, verdicts: list[Verdict], columns: int) -> list[Text]:
    faults = [v for v in verdicts if v.finding.kind is not Kind.LIMIT]
    limits = [v for v in verdicts if v.finding.kind is Kind.LIMIT]
    lines: list[Text] = []
    if limits:
        lines.append(Text("what holds it back", style="bold"))
        for verdict in limits:
            lines += _entry(verdict, columns)
        lines.append(Text())
    if not faults:
        return [*lines, Text("Nothing wrong was found.", style="bold green")]
    lines.append(Text(f"{count(len(faults), 'finding')}, by cost", style="bold"))
    for verdict in faults:
        lines += _entry(verdict, columns)
    return lines


def _entry(verdict: Verdict, columns: int) -> Iterator[Text]:
    finding, found = verdict.finding, verdict.found
    style = _STYLES[finding.kind]
    yield from _wrap(f"{finding.name}: {found.summary}{_cost(verdict)}", columns, "  ", style)
    if found.place is not None:
        yield Text(f"    {_where(found.place)}")
        if found.place.code:
            code = found.place.code
            code = code if len(code) <= _CODE else code[: _CODE - 3] + "..."
            yield Text(f"      {code}", style="bold")
    for line in found.evidence:
        yield from _wrap(line, columns, "    ", "dim")
    yield from _wrap(f"-> {found.todo}", columns, "    ", "green")
    if finding.fixed_by:
        yield from _wrap(f"hasten tune tries: {', '.join(finding.fixed_by)}", columns, "    ")


def _cost(verdict: Verdict) -> str:
    if verdict.finding.kind is Kind.WRONG and not verdict.found.cost:
        return " (the result is wrong)"
    if verdict.found.cost is None or verdict.share is None:
        return ""
    return f" ({1000 * verdict.found.cost:.1f} ms an iteration, {100 * verdict.share:.0f} %)"


def _where(place: Place) -> str:
    relative = os.path.relpath(place.file)
    name = place.file if relative.startswith("..") else relative
    return f"{name}:{place.line}"


def _small_print(diagnosis: Diagnosis, shield: str, columns: int) -> list[Text]:
    lines = [Text()]
    for note in (*diagnosis.profile.notes, *diagnosis.notes):
        lines += _wrap(f"note: {note}", columns, style="yellow")
    for name, what_if in diagnosis.what_ifs.items():
        if what_if.problem:
            lines += _wrap(f"note: {name} could not be measured: {what_if.problem}", columns)
    if shield:
        lines += _wrap(f"shield: {shield.removeprefix('shield ')}", columns)
    return lines
