"""Layers add a bias that the batch norm behind them takes away again.

What it is
    A convolution or linear layer with a bias, whose result goes into nothing else than a batch
    norm.

Why it costs
    The batch norm subtracts the mean of each channel, and the bias with it. Its gradient is a sum
    over the whole batch that is always zero, and an optimizer keeps state for it.

How it is measured
    A call of the model is made again on a copy, which shows where results go. The layers are run
    with and without their biases on the recorded inputs, forward and backward, in turns, on a CPU
    by processor time. It is only told where that is surely worth it, which is rare: the bias is
    often added in the layer's own kernel.

What to do
    `nn.Conv2d(..., bias=False)`. The outputs are the same but for rounding; a checkpoint has fewer
    entries.

Source
    PyTorch performance tuning guide, "Disable bias for convolutions directly followed by a batch
    norm".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings._instead import savings
from hasten.findings.base import Diagnosis, Finding, Found, milliseconds

_LEAST = 0.02  # of an iteration, all layers together


class BiasBeforeNorm(Finding):
    """Biases without effect."""

    name: ClassVar[str] = "bias-before-norm"
    subject: ClassVar[str] = "compute"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """All of them together; the dearest line is named."""
        lines = sorted(savings(diagnosis, "biases", 0.0), key=lambda one: -one.cost)
        cost = sum(one.cost for one in lines)
        if not lines or cost < _LEAST * diagnosis.iteration:
            return
        layers = sum(one.times for one in lines)
        kinds = sorted({entry["layer"] for one in lines for entry in one.entries})
        yield Found(
            summary=f"{layers} layers have a bias that a batch norm takes away again",
            todo="bias=False in each layer whose result goes into a batch norm",
            evidence=(
                f"{', '.join(kinds)}: without biases forward and backward of them take "
                f"{milliseconds(cost)} less an iteration",
            ),
            place=lines[0].place,
            cost=cost,
        )
