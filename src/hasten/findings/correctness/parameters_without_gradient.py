"""A module is called in order to be trained, and its parameters never get a gradient.

What it is
    An optimizer owns the parameters, they require a gradient, the module runs with gradients on,
    and yet no backward pass reaches them: what it returns was detached, turned into numbers, or
    never used by the loss.

Why it costs
    This part of the model keeps its initial values while the loss falls by means of the rest.
    Under DistributedDataParallel it is an error as well.

How it is measured
    `.grad` was None at every one of the first steps of the optimizer that owns it, for all
    parameters of a module, and the module was called with gradients on. Modules that are frozen
    by `requires_grad_(False)`, run under `no_grad`, aren't called, or get a gradient now and then
    are not that.

What to do
    Look for `.detach()`, `.data`, `.item()`, `.numpy()` or `torch.tensor(...)` between the module
    and the loss. What is frozen on purpose should say so by `requires_grad_(False)`.

Source
    PyTorch, notes on autograd mechanics and on DistributedDataParallel (unused parameters).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hasten.findings.base import Diagnosis, Finding, Found, Kind
from hasten.findings.correctness._places import several, told

_LEAST = 5  # steps that were seen


class ParametersWithoutGradient(Finding):
    """Parameters that nothing trains."""

    name: ClassVar[str] = "parameters-without-gradient"
    subject: ClassVar[str] = "correctness"
    kind: ClassVar[Kind] = Kind.WRONG

    def look(self, diagnosis: Diagnosis) -> Iterator[Found]:
        """Modules that are called for nothing, those of one line together."""
        facts = diagnosis.observed.facts.get("gradients", {})
        for optimizer in facts.get("optimizers", ()):
            if optimizer["steps"] < _LEAST:
                continue
            lines = {(m["place"]["file"], m["place"]["line"]) for m in optimizer["without"]}
            for line in sorted(lines):
                modules = [
                    m
                    for m in optimizer["without"]
                    if (m["place"]["file"], m["place"]["line"]) == line
                ]
                names = [name for module in modules for name in module["parameters"]]
                elements = sum(module["elements"] for module in modules)
                yield Found(
                    summary=f"{several(names)}: no gradient ever reaches these parameters",
                    todo="look for detach(), .data, .item() or .numpy() between this module and "
                    "the loss; what is frozen on purpose needs requires_grad_(False)",
                    evidence=(
                        f"{elements:,} numbers that {optimizer['name']} owns had no gradient at "
                        f"any of {optimizer['steps']} steps, although their module was called "
                        "with gradients on",
                    ),
                    place=told(modules[0]["place"]),
                )
