"""The optimizer's step takes a large part of an iteration, and another implementation is faster.

What it is
    The optimizer goes through its parameters one by one in Python.

Why it costs
    Each parameter costs several small operations, each with its overhead.

How it is measured
    Blocks with the fused (or grouped) implementation take turns with blocks as the script is.

What to do
    `torch.optim.AdamW(..., fused=True)`, where torch has it for this optimizer and device.

Source
    PyTorch documentation of `torch.optim`: for-loop, foreach and fused implementations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, gained, milliseconds
from hasten.records import Setting

_SHARE = 0.15  # of an iteration in the optimizer, before it is suspected


class OptimizerBound(Finding):
    """An optimizer that takes its parameters one by one."""

    name: ClassVar[str] = "optimizer-bound"
    subject: ClassVar[str] = "compute"
    fixed_by: ClassVar[tuple[str, ...]] = ("fused-optimizer",)

    def what_if(self, diagnosis: Diagnosis) -> Setting | None:
        """The fused or grouped implementation, where the step takes long and there is one."""
        if diagnosis.phase("optimizer") < _SHARE * diagnosis.iteration:
            return None
        which = _faster(diagnosis)
        return {"fused-optimizer": which} if which else None

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """It is surely faster."""
        what_if, which = gained(diagnosis, self.name), _faster(diagnosis)
        if what_if is None or which is None:
            return
        steps = diagnosis.observed.all("step")
        name = diagnosis.profile.optimizers[0].name
        yield Found(
            summary=f"the step of {name} takes {milliseconds(diagnosis.phase('optimizer'))}",
            todo=f"{name}(..., {which}=True)",
            evidence=(
                f"{milliseconds(what_if.before)} an iteration, {milliseconds(what_if.after)} with "
                f"{which}=True",
            ),
            place=steps[0].place if steps else None,
            cost=what_if.gain,
        )


def _faster(diagnosis: Diagnosis) -> str | None:
    """The implementation that could be faster than the script's."""
    known = [o for o in diagnosis.profile.optimizers if o.known and not o.closure and not o.sparse]
    if any(o.supports_fused and not o.fused for o in known):
        return "fused"
    return "foreach" if any(not o.fused and not o.foreach for o in known) else None
