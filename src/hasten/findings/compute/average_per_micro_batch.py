"""Gradients are accumulated, and DistributedDataParallel averages them at each batch.

What it is
    The optimizer steps once in k batches, but the processes exchange their gradients in every
    backward pass.

Why it costs
    Only the last exchange of a window is needed; the others take time, and on several machines
    they may take most of it.

How it is measured
    Between two steps every call of the model was made without `no_sync()`. Blocks without any
    exchange take turns with blocks as the script is; all exchanges of a window but one are what
    could be saved.

What to do
    `with model.no_sync():` around forward and backward of all batches but the last of a window.

Source
    PyTorch, `DistributedDataParallel.no_sync`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings._windows import accumulating, at_each_batch
from hasten.findings.base import Diagnosis, Finding, Found, gained, milliseconds
from hasten.records import Setting


class AveragePerMicroBatch(Finding):
    """Exchanges of gradients that nothing needs."""

    name: ClassVar[str] = "average-per-micro-batch"
    subject: ClassVar[str] = "compute"

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """Without any exchange, where there are several in a window."""
        return {"relief:average": True} if _batches(diagnosis) else None

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """That is surely faster."""
        batches, what_if = _batches(diagnosis), gained(diagnosis, self.name)
        if what_if is None or not batches:
            return
        events = diagnosis.observed.all("backward")
        yield Found(
            summary=f"gradients are averaged over processes at each batch, but used at every "
            f"{batches}th",
            todo="with model.no_sync(): around all batches but the last of each update",
            evidence=(
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} "
                f"without any averaging, of which {batches - 1} in {batches} can be left out",
            ),
            place=events[0].place if events else None,
            cost=what_if.gain * (batches - 1) / batches,
        )


def _batches(diagnosis: Diagnosis) -> int:
    """Batches of a step, when each of them averages; 0: they don't."""
    for optimizer, size in accumulating(diagnosis):
        if at_each_batch(optimizer, size, "averaged"):
            return size
    return 0
