"""Validation runs in training mode, so that dropout drops and batch norm learns from it.

What it is
    `model.eval()` is missing before validation. Dropout then makes results random, and batch
    norm uses each batch's own statistics and updates its running ones.

Why it costs
    The validation score is wrong, usually too low and different each time; running statistics
    that were learnt from held-out data end up in the checkpoint.

How it is measured
    Whole passes over a loader with other data than that of training, without backward pass, in
    which the model was in training mode at every call, while it has modules that behave
    differently; and no call in evaluation mode was ever seen. For batch norm, its counter of
    batches must have moved. Passes over training data and `torch.optim.swa_utils.update_bn`,
    which estimate statistics anew, are not that, nor is dropout that is switched on by itself.

What to do
    `model.eval()` before validation, `model.train()` after it.

Source
    PyTorch, notes on autograd mechanics: "Evaluation mode (nn.Module.eval())".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told


class NeverEvalMode(Finding):
    """Validation in training mode."""

    name: ClassVar[str] = "never-eval-mode"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The last pass in training mode, when there never was another."""
        facts = diagnosis.observed.facts.get("evaluation", {})
        wrong = [
            one
            for one in facts.get("passes", ())
            if one["own_data"] and one["affected"] and one["training_mode"] >= one["batches"]
        ]
        if not wrong or facts.get("eval_seen"):
            return
        last = wrong[-1]
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(last["affected"].items()))
        evidence = [
            f"{last['calls']} calls for {last['batches']} batches without a backward pass, all in "
            f"training mode, and none in evaluation mode so far; the model has {kinds}"
        ]
        if last["moved"]:
            evidence.append(
                f"the running statistics of {last['moved']} layers were updated with these batches"
            )
        yield Found(
            summary="validation runs in training mode: its results aren't those of the model "
            "that is being trained",
            todo="call model.eval() before validation and model.train() after it",
            evidence=tuple(evidence),
            place=told(last["mode_place"]),
        )
