"""The loss is NaN or infinite, and stays so.

What it is
    From some iteration on, every backward pass starts from a value that is no number.

Why it costs
    One such step makes all parameters NaN; everything after it is lost time.

How it is measured
    The values that backward passes started from are kept and looked at afterwards: the last ones
    are all NaN or infinite. A loss that is skipped, or a single one that a GradScaler catches, is
    not that.

What to do
    Find the operation by `torch.autograd.set_detect_anomaly(True)` in a short run. Usual causes:
    the logarithm or root of zero (use the `..._with_logits` forms), a learning rate that is too
    high, float16 without scaling, NaN in the data.

Source
    PyTorch, torch.autograd.detect_anomaly; pytorch#40497.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import told

_LAST = 3  # passes that must all be bad


class NanLoss(Finding):
    """A loss that is no number."""

    name: ClassVar[str] = "nan-loss"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """The last losses are all bad."""
        facts = diagnosis.observed.facts.get("losses", {})
        if facts.get("last_bad", 0) < _LAST:
            return
        evidence = [
            f"losses up to the first bad one, in backward pass {facts['first']}: "
            + ", ".join(facts["losses"]),
            f"{facts['bad']} of {facts['passes']} passes were bad",
        ]
        if facts["broken"]:
            evidence.append(
                f"{facts['broken']} of {facts['parameters']} parameter tensors hold NaN or infinity"
            )
        yield Found(
            summary=f"the loss is {facts['losses'][-1]} since backward pass {facts['first']}",
            todo="run a few iterations under torch.autograd.set_detect_anomaly(True) to find the "
            "operation; then look at its input, the learning rate and the data",
            evidence=tuple(evidence),
            place=told(facts["place"]),
        )
