"""What `hasten compare` says: two documents of `hasten diagnose --json`, side by side."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.text import Text

from hasten.diagnosis import FINE_PHASES
from hasten.errors import HastenError
from hasten.report import machine
from hasten.report.diagnosis import SCHEMA
from hasten.report.phrases import MIB
from hasten.statistics.bootstrap import Change, change_of_mean

_EQUAL = 0.02  # a change whose interval is within this is none
_SMALL = 0.01  # of an iteration: phases below it, before and after, are not shown
_NAMES = {"data": "data wait", "copy": "copies", "optimizer": "optimizer step"}
_CEILINGS = {
    "data_free_ms": "with data free",
    "copies_free_ms": "with copies free",
    "loader_alone_ms": "loader alone",
}
_STYLES = {"slower": "red", "faster": "green"}


@dataclass(frozen=True)
class Compared:
    """A time before and after, in milliseconds.

    Attributes:
        name: what is compared.
        change: relative to before, with its interval; None where before is nothing.
        verdict: "slower", "faster", "no difference", "cannot tell"; "" where there is no interval.
    """

    name: str
    before_ms: float
    after_ms: float
    change: Change | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """What changed from one diagnosis to the other.

    Attributes:
        iteration, processor: an iteration's wall time, and processor time of the main process.
        phases: those that matter.
        ceilings: without intervals.
        appeared, gone, stayed: findings by name and place, with the cost before and after in ms.
        memory: peak bytes of the main process.
        other: facts of machine and script that are not the same, before and after.
        fail_over: the allowed change.
        failed: the iteration is surely slower, by more than that.
    """

    iteration: Compared
    processor: Compared | None
    phases: tuple[Compared, ...]
    ceilings: tuple[Compared, ...]
    appeared: tuple[Mapping[str, Any], ...]
    gone: tuple[Mapping[str, Any], ...]
    stayed: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    memory: tuple[int, int]
    other: tuple[tuple[str, Any, Any], ...]
    fail_over: float
    failed: bool


def load(path: Path) -> dict[str, Any]:
    """A document of `hasten diagnose --json`.

    Raises:
        HastenError: it can't be read, or is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HastenError(f"{path} can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise HastenError(f"{path} is no JSON document: {error}") from None
    if not isinstance(found, dict) or "iteration_ms" not in found or "phases" not in found:
        raise HastenError(f"{path} was not written by hasten diagnose --json")
    if found.get("schema") != SCHEMA:
        known = f"this hasten knows schema {SCHEMA}"
        raise HastenError(f"{path} has schema {found.get('schema')}; {known}")
    if not _number(found["iteration_ms"]) or not isinstance(found["phases"], dict):
        raise HastenError(f"{path} holds no time of an iteration")
    return found


def compare(before: dict[str, Any], after: dict[str, Any], fail_over: float) -> Comparison:
    """What changed.

    Args:
        before: a document of `hasten diagnose --json`.
        after: another.
        fail_over: how much slower an iteration may be, 0.05 for 5 %.
    """
    iteration = _compared("iteration", before, after, "iteration", "iteration_ms")
    change = iteration.change
    surely = change is not None and (change.low is None or change.low > 0)
    old, new = _findings(before), _findings(after)
    return Comparison(
        iteration=iteration,
        processor=_processor(before, after),
        phases=tuple(_phases(before, after)),
        ceilings=tuple(_ceilings(before, after)),
        appeared=tuple(new[key] for key in new if key not in old),
        gone=tuple(old[key] for key in old if key not in new),
        stayed=tuple((old[key], new[key]) for key in new if key in old),
        memory=(_peak(before), _peak(after)),
        other=tuple(_other(before, after)),
        fail_over=fail_over,
        failed=surely and change is not None and change.estimate > fail_over,
    )


def _compared(
    name: str, before: dict[str, Any], after: dict[str, Any], series: str, *path: str
) -> Compared:
    """A time that both documents have, with the interval that their iterations allow."""
    values = [_at(each, *path) for each in (before, after)]
    if not values[0]:
        return Compared(name, values[0], values[1], None, "")
    change = Change(values[1] / values[0] - 1)
    iterations = [_at(each, "observed", "series", series) for each in (before, after)]
    if all(isinstance(each, list) and each for each in iterations):
        spread = change_of_mean(iterations[0], iterations[1])
        if spread is not None and spread.low is not None and spread.high is not None:
            # A series may lack a rest: the mean is the document's, the width is the series'.
            moved = (1 + change.estimate) / max(1e-9, 1 + spread.estimate)
            low, high = ((1 + end) * moved - 1 for end in (spread.low, spread.high))
            change = Change(change.estimate, low, high)
    return Compared(name, values[0], values[1], change, _verdict(change))


def _verdict(change: Change | None) -> str:
    if change is None or change.low is None or change.high is None:
        return ""
    if change.low > 0:
        return "slower"
    if change.high < 0:
        return "faster"
    within = change.low > -_EQUAL and change.high < _EQUAL
    return "no difference" if within else "cannot tell"


def _processor(before: dict[str, Any], after: dict[str, Any]) -> Compared | None:
    means = [_at(each, "observed", "processor", "mean") for each in (before, after)]
    if not all(_number(mean) for mean in means):
        return None
    found = _compared(
        "of it processor", before, after, "processor", "observed", "processor", "mean"
    )
    return dataclasses.replace(
        found, before_ms=1000 * found.before_ms, after_ms=1000 * found.after_ms
    )


def _phases(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Compared]:
    for phase in FINE_PHASES:
        times = [each["phases"].get(phase) for each in (before, after)]
        if not all(_number(time) for time in times):
            continue
        least = _SMALL * min(each["iteration_ms"] for each in (before, after))
        if max(times) >= least:
            yield _compared(_NAMES.get(phase, phase), before, after, phase, "phases", phase)


def _ceilings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Compared]:
    for key, name in _CEILINGS.items():
        times = [_at(each, "ceilings", key) for each in (before, after)]
        if all(_number(time) for time in times):
            change = Change(times[1] / times[0] - 1) if times[0] else None
            yield Compared(name, times[0], times[1], change, "")


def _findings(document: dict[str, Any]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """By name, and by place where there are several of a name. Lines move: code is the place."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for one in document.get("findings") or ():
        file = Path(str(one.get("file") or "")).name
        found[one.get("name"), file, one.get("code")] = one
    return found


def _peak(document: dict[str, Any]) -> int:
    peak = _at(document, "examined", "peak_memory")
    return int(peak) if _number(peak) else 0


def _other(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What else is not the same: a comparison of two machines is one of machines."""
    if before.get("command") != after.get("command"):
        old, new = (" ".join(each.get("command") or ()) or "?" for each in (before, after))
        yield "command", old, new
    machines = [each.get("environment") or {} for each in (before, after)]
    for fact in ("cpu", "cores", "gpus", "torch", "python"):
        values = [each.get(fact) for each in machines]
        if values[0] != values[1]:
            yield fact, values[0], values[1]
    busy = [_at(each, "observed", "facts", "processor", "others") for each in (before, after)]
    if all(_number(one) for one in busy) and abs(busy[0] - busy[1]) > 0.25:
        yield "cores that other programs used", round(busy[0], 1), round(busy[1], 1)


def _at(document: Any, *path: str) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --- what is shown ------------------------------------------------------------------------------


def document(found: Comparison) -> dict[str, Any]:
    """All of a comparison as plain data."""
    plain = dataclasses.asdict(found)
    plain["stayed"] = [{"before": before, "after": after} for before, after in found.stayed]
    plain["memory"] = {"before": found.memory[0], "after": found.memory[1]}
    plain["other"] = [{"what": w, "before": b, "after": a} for w, b, a in found.other]
    return {"schema": SCHEMA, **plain}


def render(found: Comparison, stream: IO[str] | None = None) -> str:
    """The comparison for a person, in 80 columns."""
    stream = stream or sys.stdout
    times = [found.iteration, *([found.processor] if found.processor else []), *found.phases]
    lines = [Text(f"  {'':<18}{'before ms':>10}{'after ms':>10}  change in % (99 %)", "bold")]
    lines += [_row(time) for time in (*times, *found.ceilings)]
    if all(found.memory):
        before, after = (size / MIB for size in found.memory)
        lines.append(Text(f"  {'peak memory MiB':<18}{before:>10.0f}{after:>10.0f}"))
    lines.append(Text())
    lines += list(_finding_lines(found))
    for what, old, new in found.other:
        lines += _wrapped(f"not the same: {what}: {old} -> {new}", "yellow")
    lines.append(_conclusion(found))
    return machine.text(lines, stream)


def _wrapped(text: str, style: str) -> list[Text]:
    return [Text(line, style) for line in textwrap.wrap(text, 80, subsequent_indent="  ")]


def _row(time: Compared) -> Text:
    text = f"  {time.name:<18}{time.before_ms:>10.2f}{time.after_ms:>10.2f}"
    change = time.change
    if change is not None:
        text += f"  {100 * change.estimate:+.1f}"
        if change.low is not None and change.high is not None:
            text += f" ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
    verdict = f" {time.verdict}" if time.verdict else ""
    return Text.assemble(text, (verdict, _STYLES.get(time.verdict, "dim")))


def _finding_lines(found: Comparison) -> Iterator[Text]:
    for title, style, which in (("new", "red", found.appeared), ("gone", "green", found.gone)):
        for one in which:
            cost = one.get("cost_ms")
            costs = f" ({cost:.2f} ms an iteration)" if _number(cost) else ""
            yield from _wrapped(f"{title}: {one.get('name')}{costs}: {one.get('summary')}", style)
    for before, after in found.stayed:
        old, new = before.get("cost_ms"), after.get("cost_ms")
        change = f": {old:.2f} ms -> {new:.2f} ms" if _number(old) and _number(new) else ""
        yield Text(f"still there: {after.get('name')}{change}")


def _conclusion(found: Comparison) -> Text:
    change, limit = found.iteration.change, f"{100 * found.fail_over:g} %"
    if found.failed:
        return Text(f"An iteration became slower, by more than {limit}.", "bold red")
    verdict = found.iteration.verdict
    if verdict == "slower":
        return Text(f"An iteration became slower, by no more than {limit}.", "yellow")
    if change is not None and change.estimate > found.fail_over:
        return Text(f"More than {limit} slower, but within the noise of these runs.", "yellow")
    return Text(f"An iteration did not become slower by more than {limit}.", "bold green")
