"""The page that `hasten diagnose --html` writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hasten.diagnosis import FINE_PHASES, WhatIf
from hasten.findings import Diagnosis, Kind, Verdict
from hasten.report.html.page import Tile, conditions, render, size, sizes
from hasten.report.html.plots import Bar, Curve, Series, curve
from hasten.report.html.source import Excerpt, excerpt
from hasten.report.html.svg import milliseconds, number
from hasten.report.html.timeline import NAMES, lanes
from hasten.report.measured import STRETCHES, figures
from hasten.report.phrases import MIB, count, duration, loop

_BURSTS = 0.1  # share of a phase's time in bursts from which they are named
#: A rung of the ladder: name, seconds, class of the colour, note, a further figure.
_Step = tuple[str, float, str, str, str]
_KINDS = {
    Kind.WRONG: "wrong result",
    Kind.RISK: "may fail",
    Kind.COST: "costs time",
    Kind.LIMIT: "limit",
}
_COLOURS = {Kind.WRONG: "copy", Kind.RISK: "copy", Kind.COST: "fault", Kind.LIMIT: "step"}


@dataclass(frozen=True)
class Entry:
    """A finding as the page shows it."""

    name: str
    kind: str
    kind_words: str
    summary: str
    cost: str
    share: str
    bar: Bar | None
    source: Excerpt | None
    evidence: tuple[str, ...]
    todo: str
    fixed_by: tuple[str, ...]


def diagnosis_page(
    diagnosis: Diagnosis, verdicts: list[Verdict], shield: str, argv: tuple[str, ...]
) -> str:
    """The whole page.

    Args:
        diagnosis: what was measured.
        verdicts: what was found, in the order in which it is shown.
        shield: one line about what was protected.
        argv: the script and its arguments as Python takes them.
    """
    entries = [_entry(verdict) for verdict in verdicts]
    return render(
        "diagnosis.html.j2",
        kind="diagnosis",
        script=argv[1] if argv[0] == "-m" else argv[0],
        command=shlex.join(["hasten", "diagnose", *argv]),
        headline=_headline(diagnosis),
        lead=_lead(diagnosis, verdicts),
        tiles=list(_tiles(diagnosis)),
        recognised=loop(diagnosis.profile),
        anatomy=_anatomy(diagnosis),
        anatomy_note=_spread(diagnosis),
        timeline=lanes(diagnosis.observed.timeline),
        device_timeline=lanes(diagnosis.examined.timeline),
        no_device=diagnosis.profile.device == "cpu",
        ladder=_ladder(diagnosis),
        limits=[e for e in entries if e.kind == Kind.LIMIT.value],
        faults=[e for e in entries if e.kind != Kind.LIMIT.value],
        run=_run(diagnosis),
        losses=_losses(diagnosis),
        memory=_memory(diagnosis),
        memory_course=_memory_course(diagnosis),
        measured=list(_measured(diagnosis)),
        machine=conditions(diagnosis.environment.describe()),
        warnings=list(diagnosis.environment.limits),
        notes=list(_notes(diagnosis)),
        shield=shield.removeprefix("shield "),
    )


# --- the first things to see -------------------------------------------------------------------


def _headline(diagnosis: Diagnosis) -> tuple[str, str]:
    return milliseconds(diagnosis.iteration), "an iteration"


def _lead(diagnosis: Diagnosis, verdicts: list[Verdict]) -> str:
    name = max(FINE_PHASES, key=diagnosis.phase)
    share = diagnosis.phase(name) / diagnosis.iteration if diagnosis.iteration else 0.0
    text = f"{NAMES[name].capitalize()} takes the largest part, {100 * share:.0f} %. "
    faults = [v for v in verdicts if v.finding.kind is not Kind.LIMIT]
    if not faults:
        return text + "Nothing wrong was found."
    worst = max(faults, key=lambda v: v.found.cost or 0.0)
    text += f"{count(len(faults), 'finding')}"
    if worst.found.cost:
        text += f"; the dearest, {worst.finding.name}, costs {milliseconds(worst.found.cost)}"
    return text + "."


def _tiles(diagnosis: Diagnosis) -> Iterator[Tile]:
    loader, overall = diagnosis.profile.loader, diagnosis.overall
    if loader is not None and loader.batch_size and overall:
        note = "over the whole run"
        yield Tile("samples a second", f"{loader.batch_size / overall:,.0f}", note)
    if diagnosis.profile.iterations_per_epoch and overall:
        epoch = diagnosis.profile.iterations_per_epoch * overall
        note = count(diagnosis.profile.iterations_per_epoch, "iteration")
        yield Tile("an epoch", duration(epoch) if epoch >= 10 else f"{epoch:.1f} s", note)
    facts = diagnosis.observed.facts.get("processor", {})
    if "own" in facts:
        note = f"{facts['others']:.1f} taken by other programs"
        value = f"{facts['own']:.1f} of {diagnosis.environment.usable_cores:g}"
        yield Tile("cores used", value, note)
    if diagnosis.examined.peak_memory:
        usable = size(diagnosis.environment.usable_memory)
        yield Tile("memory", size(diagnosis.examined.peak_memory), f"at most, of {usable}")


# --- where the time goes -----------------------------------------------------------------------


def _anatomy(diagnosis: Diagnosis) -> list[Bar]:
    rows, whole, begun = [], diagnosis.iteration or 1.0, 0.0
    for name in FINE_PHASES:
        seconds = diagnosis.phase(name)
        if name == "copy" and not seconds:
            continue
        spread = diagnosis.observed.phases[name]
        share = seconds / whole
        bursts = f"{100 * spread.bursts:.0f} % of it in bursts"
        note = bursts if spread.bursts > _BURSTS and share > 0.05 else ""
        figures = milliseconds(seconds), name, f"{100 * share:.0f} %", note
        rows.append(Bar(NAMES[name], share, *figures, start=begun))
        begun += share
    return rows


def _spread(diagnosis: Diagnosis) -> str:
    seen = diagnosis.observed
    return (
        f"Mean of {count(seen.iterations, 'plain iteration')}; nine in ten took between "
        f"{milliseconds(seen.wall.low)} and {milliseconds(seen.wall.high)}."
    )


def _ladder(diagnosis: Diagnosis) -> list[Bar]:
    """From now down to the floor: what was measured with something taken away."""
    now = diagnosis.iteration
    steps: list[_Step] = [("now", now, "now", "the script as it is", "")]
    what_ifs: dict[str, WhatIf | None] = {
        f"without {name}": what_if for name, what_if in diagnosis.what_ifs.items()
    }
    what_ifs["with data free"] = diagnosis.ceilings.data_free
    what_ifs["with copies free"] = diagnosis.ceilings.copies_free
    steps += [_what_if(name, w) for name, w in what_ifs.items() if w is not None and _said(w)]
    steps += _floors(diagnosis)
    longest = max(step[1] for step in steps) or 1.0
    return [
        Bar(name, seconds / longest, milliseconds(seconds), kind, more, note)
        for name, seconds, kind, note, more in sorted(steps, key=lambda s: (s[2] != "now", -s[1]))
    ]


def _said(what_if: WhatIf) -> bool:
    return what_if.pairs > 0 and what_if.after > 0


def _what_if(name: str, what_if: WhatIf) -> _Step:
    note = f"instead of {milliseconds(what_if.before)}, in turns with it"
    if not what_if.sure:
        return name, what_if.after, "unsure", note, "within the noise"
    return name, what_if.after, "step", note, _times(what_if.before, what_if.after)


def _floors(diagnosis: Diagnosis) -> Iterator[_Step]:
    """What no change of the rest can pass."""
    now, loader, examined = diagnosis.iteration, diagnosis.examined.loader, diagnosis.examined
    if loader is not None and loader.alone is not None:
        note = "taken as fast as batches come"
        yield "the loader alone", loader.alone, "floor", note, _times(now, loader.alone)
    if examined.flops and examined.peaks:
        fastest = max(examined.peaks, key=lambda dtype: examined.peaks[dtype])
        seconds = examined.flops / examined.peaks[fastest]
        note = f"{examined.flops / 1e9:.2f} GFLOP at the speed of a large product in {fastest}"
        yield "arithmetic alone", seconds, "floor", note, _times(now, seconds)


def _times(before: float, after: float) -> str:
    return f"{before / after:.2f}\u00d7" if after else ""


def _run(diagnosis: Diagnosis) -> list[Bar]:
    """What the run consists of besides plain iterations."""
    seen = diagnosis.observed
    parts = [("getting to the loop", 1, seen.startup_seconds, "floor")]
    parts.append(("plain iterations", seen.plain_iterations, seen.plain_seconds, "now"))
    parts += [(STRETCHES.get(s.what, s.what), s.count, s.seconds, "step") for s in seen.stretches]
    total = sum(seconds for _, _, seconds, _ in parts) or 1.0
    rows = []
    for name, times, seconds, kind in parts:
        share = seconds / total
        figures = f"{seconds:.1f} s", kind, f"{100 * share:.0f} %", _often(times)
        rows.append(Bar(name, share, *figures))
    return rows


def _often(times: int) -> str:
    return "" if times <= 1 else f"{times:,} times"


# --- findings ----------------------------------------------------------------------------------


def _entry(verdict: Verdict) -> Entry:
    finding, found = verdict.finding, verdict.found
    cost = milliseconds(found.cost) if found.cost else ""
    share = f"{100 * verdict.share:.0f} %" if cost and verdict.share is not None else ""
    return Entry(
        name=finding.name,
        kind=finding.kind.value,
        kind_words=_KINDS[finding.kind],
        summary=found.summary,
        cost=cost,
        share=share,
        bar=Bar("", verdict.share, "", _COLOURS[finding.kind]) if share and verdict.share else None,
        source=excerpt(found.place),
        evidence=found.evidence,
        todo=found.todo,
        fixed_by=finding.fixed_by,
    )


# --- losses, memory, the rest --------------------------------------------------------------------


def _losses(diagnosis: Diagnosis) -> Curve | None:
    points = diagnosis.observed.facts.get("losses", {}).get("course", [])
    if len(points) < 2:
        return None
    words = f"Loss over {points[-1][0]} backward passes, from {number(points[0][1])} "
    words += f"to {number(points[-1][1])}"
    return curve([Series("loss", tuple((float(x), float(y)) for x, y in points))], words)


def _memory(diagnosis: Diagnosis) -> list[Bar]:
    examined = diagnosis.examined
    parts: list[tuple[str, float, str]] = [
        ("when the loop began", examined.memory_first, "step"),
        ("at the end", examined.memory_last, "step"),
        ("at most", examined.peak_memory, "now"),
    ]
    if looks := diagnosis.observed.facts.get("loaders", {}).get("worker_memory"):
        parts.append(("workers, private to them", max(map(max, looks)), "step"))
    if examined.device_peak_memory:
        parts.append(("on the device, at most", examined.device_peak_memory, "now"))
    return sizes(parts)


def _memory_course(diagnosis: Diagnosis) -> Curve | None:
    facts: dict[str, Any] = diagnosis.observed.facts.get("memory", {})
    lines = []
    for key, name, kind in (("resident", "process", "first"), ("device", "device", "second")):
        points = zip(facts.get("seconds", ()), facts.get(key, ()), strict=False)
        lines.append(Series(name, tuple((second, b / MIB) for second, b in points), kind))
    words = "Memory of the process in MiB over the seconds since its loop began"
    return curve(lines, words, zero=True)


def _measured(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """What has no picture: the loader by itself, arithmetic."""
    examined, loader = diagnosis.examined, diagnosis.examined.loader
    if loader is not None and loader.fetch is not None:
        yield (
            "a batch",
            size(loader.batch_bytes)
            if loader.batch_bytes >= MIB
            else (f"{loader.batch_bytes / 1024:.0f} KiB"),
        )
        yield "made by one process in", milliseconds(loader.fetch)
        if loader.collate is not None:
            yield "of it collating", milliseconds(loader.collate)
        for transform in loader.transforms:
            if transform.seconds > 0.05 * loader.fetch:
                yield f"of it in {transform.name}", milliseconds(transform.seconds)
    yield from figures(diagnosis)
    if examined.flops and diagnosis.iteration:
        speed = examined.flops / diagnosis.iteration / 1e9
        yield "arithmetic achieved", f"{speed:,.1f} GFLOP/s"
    for dtype, peak in sorted(examined.peaks.items()):
        yield f"a large product in {dtype}", f"{peak / 1e9:,.0f} GFLOP/s"


def _notes(diagnosis: Diagnosis) -> Iterator[str]:
    yield from diagnosis.profile.notes
    yield from diagnosis.notes
    for name, what_if in diagnosis.what_ifs.items():
        if what_if.problem:
            yield f"{name} could not be measured: {what_if.problem}"
    loader = diagnosis.examined.loader
    if loader is not None and loader.unknown:
        yield f"the loader by itself could not be timed: {loader.unknown}"
