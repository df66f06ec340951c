"""The model computes on the CPU although there is an accelerator.

What it is
    All parameters that the optimizers own are on the CPU, and torch sees an accelerator.

Why it costs
    Nearly every model computes many times faster there.

How it is measured
    Forward and backward of a copy of the model on the accelerator, in turns with one on the
    CPU. (Not yet seen on a GPU.)

What to do
    `model.to(device)` before the optimizer is made, and `.to(device)` for each batch.

Source
    PyTorch documentation of `torch.accelerator`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, milliseconds


class ModelOnCpu(Finding):
    """An accelerator that nobody uses."""

    name: ClassVar[str] = "model-on-cpu"
    subject: ClassVar[str] = "device"
    needs_gpu: ClassVar[bool] = True

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """A copy of the model was faster on the accelerator."""
        times = diagnosis.examined.facts.get("on_accelerator")
        if diagnosis.profile.device != "cpu" or not times or times[0] <= times[1]:
            return
        backward = diagnosis.observed.all("backward")
        yield Found(
            summary="the model computes on the CPU, and there is an accelerator",
            todo="model.to(device) before the optimizer is made, batch.to(device) in the loop",
            evidence=(
                f"forward and backward take {milliseconds(times[0])} here and "
                f"{milliseconds(times[1])} on the accelerator",
            ),
            place=backward[0].place if backward else None,
            cost=times[0] - times[1],
        )
