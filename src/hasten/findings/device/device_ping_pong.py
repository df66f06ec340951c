"""Something is copied from the accelerator to the host and back in every iteration.

What it is
    A tensor leaves the accelerator, and as many bytes go back to it later in the same
    iteration.

Why it costs
    The way out waits for all work that was given to the accelerator, and both ways take the
    bus.

How it is measured
    The time inside both copies in the observed iterations. (Not yet seen on a GPU.)

What to do
    Do on the accelerator what is done between them.

Source
    PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.diagnosis import Event
from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_OFTEN = 0.5  # times an iteration
_LEAST = 1024  # bytes: less is a number, not data


class DevicePingPong(Finding):
    """Data that leaves the accelerator and comes back."""

    name: ClassVar[str] = "device-ping-pong"
    subject: ClassVar[str] = "device"
    needs_gpu: ClassVar[bool] = True

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """A copy out is followed by one in of the same size."""
        seen = diagnosis.observed
        often = [e for e in seen.all("copy") if seen.per_iteration(e) >= _OFTEN]
        often = [e for e in often if e.facts.get("bytes", 0) >= _LEAST]
        out = [e for e in often if e.facts.get("target") == "cpu"]
        back = [e for e in often if e.facts.get("source") == "cpu"]
        for leaving in out:
            for coming in back:
                same = leaving.facts.get("bytes") == coming.facts.get("bytes")
                if same and _in_this_order(diagnosis, leaving, coming):
                    yield _found(diagnosis, leaving, coming)


def _found(diagnosis: Diagnosis, leaving: Event, coming: Event) -> Found:
    line = "" if coming.place is None else f", which comes back at line {coming.place.line}"
    cost = (leaving.seconds + coming.seconds) / max(1, diagnosis.observed.iterations)
    return Found(
        summary="a tensor goes to the host and back in each iteration",
        todo="keep it on the accelerator, and do there what is done between",
        evidence=(
            f"{leaving.facts['bytes'] / 2**20:.2f} MiB leave here{line}; both take "
            f"{milliseconds(cost)}",
        ),
        place=leaving.place,
        cost=cost,
    )


def _in_this_order(diagnosis: Diagnosis, first: Event, second: Event) -> bool:
    """Whether `second` comes after `first` in every sequence that has both."""
    events = diagnosis.observed.events
    one, other = events.index(first), events.index(second)
    orders = []
    for sequence in diagnosis.observed.sequences:
        order = [moment.event for moment in sequence if moment.event in (one, other)]
        if one in order and other in order:
            orders.append(order.index(one) < order.index(other))
    return bool(orders) and all(orders)
