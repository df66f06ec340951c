"""The page that `hasten tune --html` writes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hasten.diagnosis import Course
from hasten.plan import Plan
from hasten.records import PHASES, Outcome, Profile, Ratio, Tried, Value
from hasten.report.document import default, script
from hasten.report.html.page import Tile, conditions, render, sizes
from hasten.report.html.plots import VERDICTS, Bar, Curve, Scale, Series, curve, interval, scale
from hasten.report.html.svg import milliseconds, number
from hasten.report.html.timeline import NAMES, lanes
from hasten.report.html.verification_page import curves, losses_note, quantities
from hasten.report.phrases import COUNTED, count, duration, loop, run_command, times, value
from hasten.report.phrases import interval as between
from hasten.report.verification import runs

_ELSEWHERE = "not applicable"
_VAGUE = 3.0  # an interval so wide says nothing of a ceiling
_WIDE = 1.8  # ... and one so wide that its middle is not quoted
_PLAN = "the plan"
_AS_IS = "as it is"


@dataclass(frozen=True)
class Row:
    """One candidate as the page shows it."""

    name: str
    value: str
    against: str
    picture: Markup
    ratio: str
    interval: str
    verdict: str
    kind: str
    shape: str
    numerics: str
    pairs: int
    notes: tuple[str, ...]


def tuning_page(outcome: Outcome, plan: Plan, written: Path | None) -> str:
    """The whole page.

    Args:
        outcome: what was found.
        plan: the plan made of it.
        written: where the plan was written; None when it was not.
    """
    measured = [t for t in outcome.tried if t.verdict != _ELSEWHERE and not _left(t)]
    on = scale(measured)
    return render(
        "tuning.html.j2",
        kind="tuning",
        script=plan.script.removeprefix("-m "),
        command=shlex.join(["hasten", "tune", *script(plan)]),
        headline=_headline(outcome),
        lead=_lead(outcome),
        tiles=list(_tiles(outcome)),
        recognised=loop(outcome.profile),
        settings=[_setting(name, outcome, plan) for name in plan.setting],
        next=run_command(script(plan), None if default(plan, written) else written)
        if plan.setting and written is not None
        else "",
        written=None if written is None else str(written),
        anatomy=_anatomy(outcome.profile),
        anatomy_note=f"Mean of {count(len(outcome.profile.iteration_seconds), 'iteration')} "
        "as the script has them.",
        timeline=lanes(outcome.profile.timeline),
        ladder=_ladder(outcome),
        rows=[_row(t, on) for t in measured],
        scale=on.ticks,
        shapes=_shapes(measured),
        elsewhere=_elsewhere(outcome.tried),
        left=[f"{t.name} {_value(t)}".strip() for t in outcome.tried if _left(t)],
        losses=_losses(outcome.courses),
        **_trains(outcome),
        memory=_memory(outcome.courses),
        machine=conditions(outcome.environment),
        warnings=list(outcome.environment.get("limits", ())),
        notes=[*outcome.profile.notes, *outcome.notes],
        shield=outcome.shield.removeprefix("shield "),
    )


# --- the first things to see -------------------------------------------------------------------


def _headline(outcome: Outcome) -> tuple[str, str]:
    if not outcome.setting:
        return milliseconds(outcome.profile.iteration), "an iteration, as before"
    if outcome.confirmed is None:
        return "a plan", "not confirmed from end to end"
    ratio = f"{outcome.confirmed.ratio:.2f}\u00d7"
    if not _known(outcome.confirmed) and outcome.confirmed_verdict == "faster":
        ratio = f"\u2265 {outcome.confirmed.low:.2f}\u00d7"
    return ratio, "as fast" if outcome.confirmed_verdict == "faster" else "as fast, perhaps"


def _known(ratio: Ratio) -> bool:
    """Whether an interval is narrow enough for its middle to be quoted."""
    return ratio.low > 0 and ratio.high < _WIDE * ratio.low


def _lead(outcome: Outcome) -> str:
    if not outcome.setting:
        unsure = sum(entry.verdict == "cannot tell" for entry in outcome.tried)
        if outcome.interrupted:
            return "Nothing was found to be faster before the search was interrupted."
        if unsure:
            return (
                f"Nothing was surely faster. {count(unsure, 'candidate')} could not be told from "
                "the script as it is: a larger --budget, or a quieter machine, can tell."
            )
        return "Nothing that applies to this script is measurably faster on this machine and safe."
    if outcome.confirmed is None:
        return "The search ended before the gain could be measured from end to end."
    low, high = outcome.confirmed.low, outcome.confirmed.high
    if outcome.confirmed_verdict == "faster":
        return (
            f"Between {low:.2f} and {high:.2f} times, measured once more from end to end by two "
            "processes in turns."
        )
    return (
        f"Between {low:.2f} and {high:.2f} times from end to end, which the time did not suffice "
        "to confirm: a larger --budget can tell."
    )


def _tiles(outcome: Outcome) -> Iterator[Tile]:
    now = outcome.profile.iteration
    yield Tile("an iteration now", milliseconds(now))
    if outcome.setting and outcome.confirmed is not None and _known(outcome.confirmed):
        faster = milliseconds(now / outcome.confirmed.ratio)
        yield Tile("with the plan", faster, "by the confirmed ratio")
    tried = sum(t.pairs > 0 for t in outcome.tried)
    compiling = outcome.compile_seconds
    took = f"{duration(outcome.seconds)} of measuring"
    took += f", {duration(compiling)} of compiling" if compiling >= 1 else ""
    yield Tile("candidates measured", f"{tried}", took)
    yield Tile("iterations run", f"{outcome.iterations:,}", "of the script, in throw-away children")


def _setting(name: str, outcome: Outcome, plan: Plan) -> tuple[str, str, str]:
    """Name, value, and the class of what it may change."""
    known = [t.numerics for t in outcome.tried if t.name == name and t.numerics]
    return name, _words(plan.setting[name]) or "on", known[-1] if known else ""


# --- where the time goes -----------------------------------------------------------------------


def _anatomy(profile: Profile) -> list[Bar]:
    rows, whole, begun = [], profile.iteration or 1.0, 0.0
    for name in PHASES:
        seconds = profile.phases.get(name, 0.0)
        share = seconds / whole
        figures = milliseconds(seconds), name, f"{100 * share:.0f} %"
        rows.append(Bar(NAMES[name], share, *figures, start=begun))
        begun += share
    return rows


def _ladder(outcome: Outcome) -> list[Bar]:
    """From now through the steps of the plan, as the search measured them, to the ceiling."""
    now = outcome.profile.iteration
    steps = [("now", 1.0, "now", "the script as it is")]
    steps += _stairs(outcome)
    confirmed, free = outcome.confirmed, outcome.data_free
    if confirmed is not None and outcome.setting:
        note = f"from end to end: {between(confirmed.low, confirmed.high)}"
        steps.append((_PLAN, confirmed.ratio, "plan", note))
    if free is not None and free.low > 0 and free.high < _VAGUE * free.low:
        note = f"no wait for data, nothing else changed: {between(free.low, free.high)}"
        steps.append(("with data free", free.ratio, "floor", note))
    kept = [step for step in steps if math.isfinite(step[1]) and step[1] > 0]
    least = min(ratio for _, ratio, _, _ in kept)
    return [
        Bar(name, least / ratio, milliseconds(now / ratio), kind, _times(ratio, kind), note)
        for name, ratio, kind, note in kept
    ]


def _times(ratio: float, kind: str) -> str:
    return "" if kind == "now" else f"{ratio:.2f}\u00d7"


def _stairs(outcome: Outcome) -> list[tuple[str, float, str, str]]:
    """Settings on the way to the plan that were faster than the one before."""
    wanted, known = set(outcome.setting), {frozenset[str](): 1.0}
    stairs = []
    for tried in outcome.tried:
        before = frozenset(_names(tried.against)) - {"baseline", ""}
        after = before | set(_names(tried.name))
        if tried.verdict != "faster" or tried.ratio is None or not after <= wanted:
            continue
        if before in known and after not in known:
            known[after] = known[before] * tried.ratio
            note = "as the search measured it, block by block"
            stairs.append((f"with {' + '.join(sorted(after))}", known[after], "step", note))
    return stairs


def _names(joined: str) -> list[str]:
    return joined.split(" + ")


# --- what was tried ----------------------------------------------------------------------------


def _row(tried: Tried, on: Scale) -> Row:
    kind, shape = VERDICTS.get(tried.verdict, VERDICTS["cannot tell"])
    notes = [tried.reason] if tried.reason else []
    if tried.payback_iterations is not None:
        iterations = count(tried.payback_iterations, "iteration")
        notes.append(f"{tried.compile_seconds:.0f} s of compiling are won back after {iterations}")
    return Row(
        name=tried.name,
        value=_value(tried),
        against="" if tried.against in ("", "baseline") else tried.against,
        picture=interval(tried, on),
        ratio=times(tried.ratio).replace("x", "\u00d7"),
        interval=between(tried.low, tried.high),
        verdict=tried.verdict,
        kind=kind,
        shape=shape,
        numerics=tried.numerics,
        pairs=tried.pairs,
        notes=tuple(notes),
    )


def _value(tried: Tried) -> str:
    """In words; several together say no more than their names."""
    return "" if " + " in tried.name else _words(tried.value)


def _words(what: Value) -> str:
    return ", ".join(map(str, what)) if isinstance(what, (list, tuple)) else value(what)


def _left(tried: Tried) -> bool:
    """Whether there was no time for it."""
    return tried.ratio is None and tried.verdict == "cannot tell"


def _shapes(tried: list[Tried]) -> list[tuple[str, str, str]]:
    """The legend: class, shape and word of each verdict that occurs."""
    seen = {t.verdict for t in tried}
    return [(*look, verdict) for verdict, look in VERDICTS.items() if verdict in seen]


def _elsewhere(tried: tuple[Tried, ...]) -> list[tuple[str, str]]:
    """What is for other scripts or machines: the reason, and the names."""
    names: dict[str, list[str]] = {}
    for entry in tried:
        if entry.verdict == _ELSEWHERE:
            names.setdefault(entry.reason, []).append(entry.name)
    return [(", ".join(dict.fromkeys(those)), reason) for reason, those in names.items()]


# --- losses and memory ---------------------------------------------------------------------------


def _losses(courses: tuple[Course, ...]) -> Curve | None:
    lines = [
        Series(
            _PLAN if course.setting else _AS_IS,
            tuple((float(x), y) for x, y in course.losses),
            "second" if course.setting else "first",
        )
        for course in courses
    ]
    ends = [f"{s.name} ends at {number(s.points[-1][1])}" for s in lines if s.points]
    return curve(lines, f"Loss over iterations in both processes: {', '.join(ends)}")


def _trains(outcome: Outcome) -> dict[str, Any]:
    """What was compared of the training itself, for the template."""
    found = outcome.verified
    known = found is not None and bool(found.pairs)
    return {
        "counted": outcome.counted,
        "broken": [*outcome.broken, *(found.broken if found is not None else ())],
        "words": COUNTED,
        "runs": f"{runs(found)}." if found is not None and known else "",
        "judged": quantities(found) if found is not None else [],
        "curves": list(curves(found)) if found is not None else [],
        "losses_note": losses_note(found) if found is not None else "",
    }


def _memory(courses: tuple[Course, ...]) -> list[Bar]:
    return sizes(
        [
            (_PLAN, c.peak_memory, "plan") if c.setting else (_AS_IS, c.peak_memory, "now")
            for c in courses
        ]
    )
