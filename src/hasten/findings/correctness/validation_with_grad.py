"""Validation builds a graph for each batch, which nothing uses.

What it is
    The model runs over a loader with gradients on, and no backward pass follows.

Why it costs
    The graph keeps the intermediate results of each batch, so that validation needs about as
    much memory as training, and less of it could be used for a larger batch; recording takes
    some time, too.

How it is measured
    A whole pass over a loader without any backward pass, step or `torch.autograd.grad`, in which
    what the model returned had a graph each time. The tensors that one such graph holds are
    added up.

What to do
    Put `with torch.inference_mode():` (or `torch.no_grad()`) around validation. `model.eval()`
    doesn't do that.

Source
    PyTorch, notes on autograd mechanics: "Locally disabling gradient computation".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told


class ValidationWithGrad(Finding):
    """Graphs that are built for nothing."""

    name: ClassVar[str] = "validation-with-grad"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The last pass of each line that calls the model with gradients on."""
        facts = diagnosis.observed.facts.get("evaluation", {})
        last = {}
        for one in facts.get("passes", ()):
            if one["with_graph"] >= one["batches"] and one["graph_place"] is not None:
                last[one["graph_place"]["file"], one["graph_place"]["line"]] = one
        for one in last.values():
            kept = one["kept"] / 2**20
            size = f"{kept:.1f} MiB" if kept >= 0.1 else f"{one['kept'] / 1024:.1f} KiB"
            held = f", each holding {size}" if one["kept"] else ""
            yield Found(
                summary="validation builds a graph for each batch, and nothing uses it",
                todo="run validation under torch.inference_mode(); model.eval() doesn't turn "
                "gradients off",
                evidence=(
                    f"{one['with_graph']} graphs in a pass of {one['batches']} batches{held}, "
                    "and no backward pass",
                ),
                place=told(one["graph_place"]),
            )
