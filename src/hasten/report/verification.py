"""What `hasten verify` prints: the verdict in words, or one JSON document with the curves."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator
from typing import IO, Any

from hasten.report import phrases
from hasten.report.document import finite
from hasten.verification import Judged, Verification

#: Raised when a field changes its meaning or goes away; new fields don't count.
SCHEMA = 1
_COLUMNS = 80


def document(found: Verification) -> dict[str, Any]:
    """All of a verification as plain data; `pairs` holds the loss curves."""
    plain: dict[str, Any] = finite({"schema": SCHEMA, **dataclasses.asdict(found)})
    return plain


def render(found: Verification, stream: IO[str] | None = None) -> str:
    """The verification for a person.

    Args:
        found: what came of it.
        stream: where the text will go, whose encoding it has to fit; stdout when None.
    """
    import sys

    lines = [line for text in _paragraphs(found) for line in _wrapped(text)]
    return phrases.safe("\n".join(lines) + "\n", stream or sys.stdout)


def _wrapped(text: str) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(text, _COLUMNS, subsequent_indent=indent + "  ", break_on_hyphens=False)
    return lines or [""]


def _paragraphs(found: Verification) -> Iterator[str]:
    setting = "; ".join(f"{n} {phrases.value(v)}".strip() for n, v in found.setting.items())
    yield f"plan: {setting}"
    yield runs(found)
    yield ""
    yield from compared(found)
    yield ""
    yield f"verdict: {_verdict(found)}"
    for note in found.notes:
        yield f"note: {note}"
    if found.shield:
        yield found.shield


def runs(found: Verification) -> str:
    """How many runs there were, over what, and from which seeds."""
    over = f"over the same {found.iterations} iterations: {found.seeds}"
    return f"{phrases.count(len(found.pairs), 'pair')} of runs {over}"


def compared(found: Verification) -> Iterator[str]:
    """Each quantity with its verdict and margin, and whether all that is counted was the same."""
    for judged in found.judged:
        yield from _judged(judged, found)
    if found.broken:
        yield "broken under the plan:"
        yield from (f"  {line}" for line in found.broken)
    elif found.pairs:
        yield f"the same under the plan: {phrases.COUNTED}"


def _verdict(found: Verification) -> str:
    if found.verdict == "holds":
        return "the plan holds over these iterations"
    if found.verdict == "broken":
        return "the plan does not train the same: do not use it"
    return "these runs can't tell whether the plan is as good: more --seeds or --iterations"


def _judged(judged: Judged, found: Verification) -> Iterator[str]:
    what = judged.what
    if what == "final loss":
        last = f"the last {found.smoothed}" if found.smoothed > 1 else "the last one"
        what = f"{what} (mean over {last})"
    yield f"{what}: {_number(judged.baseline)}, under the plan {_number(judged.plan)}"
    if judged.identical:
        yield f"  the same to the bit in all {judged.pairs} pairs"
        return
    percent = f"{100 * judged.confidence:.0f} %"
    words = {
        "not worse": f"not worse beyond {_number(judged.margin)} ({judged.margin_from})",
        "worse": f"worse, by more than {_number(judged.margin)} ({judged.margin_from})",
    }
    line = words.get(
        judged.verdict,
        f"can't tell whether worse by {_number(judged.margin)} ({judged.margin_from})",
    )
    yield f"  {line}" + (f": {judged.reason}" if judged.reason else "")
    if math.isfinite(judged.high):
        yield (
            f"  mean difference over {judged.pairs} pairs {_number(judged.difference)} (above 0 is "
            f"worse); by {percent} confidence each below {_number(judged.high)} and above "
            f"{_number(judged.low)}"
        )


def _number(value: float) -> str:
    return f"{value:.4g}"
