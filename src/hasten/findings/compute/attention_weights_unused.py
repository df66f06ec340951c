"""nn.MultiheadAttention returns attention weights, which nothing uses.

What it is
    A call without `need_weights=False`, whose second result is dropped.

Why it costs
    The weights are a matrix of all pairs of positions. To return it the module can't use the
    fused kernel, and averages it over heads besides.

How it is measured
    A call of the model is made again on a copy, and shows whether anything uses the weights. The
    module's work is run with and without them on the recorded shapes, forward and backward, in
    turns, on a CPU by processor time.

    It is run alone, outside of the training, where both ways may be quicker than in it.

What to do
    `self.attention(q, k, v, need_weights=False)`. It rounds differently, and its dropout draws
    other numbers.

Source
    PyTorch, `nn.MultiheadAttention`: "Set need_weights=False to use the optimized
    scaled_dot_product_attention and achieve the best performance".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings._instead import savings
from hasten.findings.base import Diagnosis, Finding, Found

_LEAST = 0.03  # of an iteration


class AttentionWeightsUnused(Finding):
    """Weights that are made for nothing."""

    name: ClassVar[str] = "attention-weights-unused"
    subject: ClassVar[str] = "compute"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Without them it is surely faster."""
        for one in savings(diagnosis, "weights", _LEAST):
            where = f", in {one.library}" if one.library else ""
            yield Found(
                summary=f"nn.MultiheadAttention makes attention weights that nothing uses{where}",
                todo="call it with need_weights=False",
                evidence=(
                    f"{one.times} calls an iteration, {one.faster:.1f} times as fast without "
                    "the weights, forward and backward, run alone",
                ),
                place=one.place,
                cost=one.cost,
            )
