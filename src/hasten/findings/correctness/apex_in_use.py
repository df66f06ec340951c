"""The script trains with NVIDIA's apex, whose parts torch has had of its own since long.

What it is
    `apex.amp`, an optimizer of `apex.optimizers`, or modules such as
    `apex.parallel.DistributedDataParallel`.

Why it costs
    apex.amp is no longer maintained and its authors point to torch.amp. It patches torch's
    functions, must be built against the very version of torch, and hides precision from
    torch.compile.

How it is measured
    Its loss scaling was called, an optimizer that steps is one of its classes, or the model holds
    its modules. That it can be imported is not enough.

What to do
    `torch.amp.autocast` and `torch.amp.GradScaler`; `torch.optim.AdamW(..., fused=True)`;
    `torch.nn.parallel.DistributedDataParallel`.

Source
    NVIDIA/apex, README: deprecation of apex.amp and apex.parallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import several, told


class ApexInUse(Finding):
    """A library that torch has replaced."""

    name: ClassVar[str] = "apex-in-use"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """What of it was used."""
        uses = diagnosis.observed.facts.get("apex", {}).get("uses", ())
        if not uses:
            return
        names = [use["name"] for use in uses]
        placed = [use["place"] for use in uses if use["place"] is not None]
        yield Found(
            summary="training uses NVIDIA's apex, which torch's own parts have replaced",
            todo="use torch.amp, fused=True in torch.optim, and torch's DistributedDataParallel",
            evidence=(f"in use: {several(names)}",),
            place=told(placed[0] if placed else None),
        )
