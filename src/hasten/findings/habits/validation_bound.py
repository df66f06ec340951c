"""Validation takes much of the run.

What it is
    Passes over another loader than the one that is trained on, more than a quarter of the time.

Why it costs
    Nothing is learned meanwhile. Early in a training one pass says little that the last one
    hasn't.

How it is measured
    The time from the first to the last batch of other loaders, at least two passes of it, against
    the time of the run. Where there is a pass after each epoch, the epoch's length says how often
    that is, not the few epochs that were seen.

What to do
    Validate after every few epochs, or on a part of the data; larger batches and
    `torch.inference_mode()` make a pass shorter. It is a matter of how much you want to know.

Source
    Lightning, "Speed up model training", on `check_val_every_n_epoch`, `limit_val_batches` and
    `val_check_interval`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.diagnosis import Place, Stretch
from hasten.findings.base import Diagnosis, Finding, Found, Kind, percent, place_from

_SHARE = 0.25  # of the run
_LEAST = 2  # passes


class ValidationBound(Finding):
    """A run that validates for much of its time."""

    name: ClassVar[str] = "validation-bound"
    subject: ClassVar[str] = "habits"
    kind: ClassVar[Kind] = Kind.LIMIT

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Several passes, and a large share."""
        seen = diagnosis.observed
        spent = next((s for s in seen.stretches if s.what == "validation"), None)
        if spent is None or spent.count < _LEAST or not seen.trained_iterations:
            return
        every = _every(diagnosis, spent)
        cost = spent.seconds / spent.count / every
        rest = diagnosis.overall - spent.seconds / seen.trained_iterations
        share = cost / (cost + rest)
        if share < _SHARE:
            return
        passes = seen.facts.get("evaluation", {}).get("passes", ())
        batches = f" of {passes[-1]['batches']} batches" if passes else ""
        yield Found(
            summary=f"validation takes {percent(share)} of the run",
            todo="validate less often or on a part of the data; larger batches make a pass shorter",
            evidence=(
                f"{spent.count} passes{batches}, {spent.seconds / spent.count:.2f} s each, one "
                f"after {every:.0f} iterations",
            ),
            place=_place(diagnosis),
            cost=cost,
            of=cost * diagnosis.iteration / (share * diagnosis.overall),
        )


def _every(diagnosis: Diagnosis, spent: Stretch) -> float:
    """Iterations from one pass to the next."""
    trained = diagnosis.observed.trained_iterations
    epoch = diagnosis.profile.iterations_per_epoch
    if epoch and abs(spent.count * epoch - trained) <= epoch:
        return float(epoch)
    return trained / spent.count


def _place(diagnosis: Diagnosis) -> Place | None:
    passes = diagnosis.observed.facts.get("evaluation", {}).get("passes", ())
    return place_from(passes[-1].get("place")) if passes else None
