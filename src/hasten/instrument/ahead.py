"""What of a setting must be in force before the loop is known: from the script's first line on."""

from __future__ import annotations

from typing import Any

from hasten.instrument.conductor import Conductor
from hasten.records import Setting

#: Units that save memory: without them there might be no second iteration.
_MEMORY = ("micro-batches", "checkpoint-blocks")


def ahead(conductor: Conductor, setting: Setting) -> None:
    """Put in what can't wait; the conductor takes it over when it knows the loop."""
    if isinstance(wanted := setting.get("batch-size"), dict):
        from hasten.instrument.seams.batch_size import BatchSizes

        sizes = BatchSizes(wanted)
        sizes.install()
        if factors := wanted.get("lr"):
            from hasten.instrument.seams.rates import ScaledRates

            ScaledRates(factors, lambda: sizes.changed > 0).install()
    early: dict[str, Any] = {name: setting[name] for name in _MEMORY if name in setting}
    if early:
        from hasten.instrument.seams.early import EarlyCalls

        calls = EarlyCalls(early.get("micro-batches"), early.get("checkpoint-blocks"))
        calls.install()
        conductor.take_over(calls.uninstall, early)
