"""Attention is computed by hand, where one fused kernel is faster.

What it is
    A product of queries and keys, scaled and masked, a softmax, maybe a dropout, and a product
    with the values, each an operation of its own.

Why it costs
    Each operation reads and writes a matrix of all pairs of positions, and the backward pass does
    so again. The fused kernel never writes that matrix.

How it is measured
    A call of the model is made again on a copy, and what gives the same numbers as
    `scaled_dot_product_attention` is taken for attention. Both are run on the recorded shapes,
    forward and backward, in turns, on a CPU by processor time. It is only told where the kernel
    is surely faster: on a CPU it isn't for short sequences or with dropout. Weights that are used
    for anything else are left alone.

    They are run alone, outside of the training, where both may be quicker than in it: what is
    told was seen to lie below what the training gained.

What to do
    `F.scaled_dot_product_attention(q, k, v, ...)`. It rounds differently, and its dropout draws
    other numbers.

Source
    PyTorch, `torch.nn.functional.scaled_dot_product_attention`; Hugging Face Transformers, "GPU
    inference", on SDPA; Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hasten.findings._instead import savings
from hasten.findings.base import Diagnosis, Finding, Found

_LEAST = 0.03  # of an iteration


class AttentionByHand(Finding):
    """Attention in several operations."""

    name: ClassVar[str] = "attention-by-hand"
    subject: ClassVar[str] = "compute"

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The kernel is surely faster."""
        for one in savings(diagnosis, "attention", _LEAST):
            call = _call(one.entries[0])
            where = f", in {one.library}" if one.library else ""
            queries, keys = one.entries[0]["shape"][-2:]
            yield Found(
                summary=f"attention is computed by hand{where}",
                todo='load the model with attn_implementation="sdpa"'
                if "transformers" in one.library
                else call,
                evidence=(
                    f"{one.times} an iteration, scores of {queries} x {keys}; the fused kernel "
                    f"gives the same numbers and is {one.faster:.1f} times as fast, forward and "
                    "backward, run alone",
                ),
                place=one.place,
                cost=one.cost,
            )


def _call(entry: dict[str, Any]) -> str:
    more = ", attn_mask=mask" if entry["mask"] else ""
    more += ", is_causal=True" if entry["causal"] else ""
    more += ", dropout_p=p if self.training else 0.0" if entry["dropout"] else ""
    return f"F.scaled_dot_product_attention(q, k, v{more}) instead of product, softmax and product"
