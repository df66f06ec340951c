"""Seam: an optimizer's step through torch.compile.

The compiled form takes the place of the class's own `step` under torch's step hooks and under the
wrapper that schedulers put on the instance, so that both go on seeing every step.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument import patching

Step = Callable[..., Any]

#: The compiled step in force of each optimizer that has one.
_IN_FORCE: weakref.WeakKeyDictionary[Optimizer, Step] = weakref.WeakKeyDictionary()


def raw_step(optimizer: Optimizer) -> Step:
    """The step of an optimizer's class without torch's hooks: a function of the optimizer."""
    step = type(optimizer).step
    hooked = getattr(step, "hooked", False)
    found: Step = step.__wrapped__ if hooked else step  # type: ignore[attr-defined]
    return found


def step_in_force(optimizer: Optimizer) -> Step:
    """What `optimizer` steps with now, without hooks: compiled or not."""
    return _IN_FORCE.get(optimizer) or raw_step(optimizer)


class WithRates:
    """A compiled step that is given learning rates as tensors.

    Dynamo takes a number for a constant, and would compile anew for each that a schedule sets. The
    groups hold numbers again afterwards, as the script and its schedulers expect.
    """

    def __init__(self, compiled: Step) -> None:
        self._compiled = compiled
        self._rates: list[torch.Tensor] = []

    def __call__(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step once."""
        groups = [g for g in optimizer.param_groups if isinstance(g.get("lr"), float)]
        own = [group["lr"] for group in groups]
        while len(self._rates) < len(groups):
            self._rates.append(torch.zeros(()))
        for group, rate in zip(groups, self._rates, strict=False):
            group["lr"] = rate.fill_(group["lr"])
        try:
            return self._compiled(optimizer, *args, **kwargs)
        finally:
            for group, number in zip(groups, own, strict=True):
                group["lr"] = number


class CompiledStep:
    """torch.compile around one optimizer's step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._compiled: Step | None = None
        self._patch: patching.Patch | None = None
        self._capturable: list[Any] = []
        self.compilations = 0  # steps in which something was compiled

    @property
    def hindrance(self) -> str:
        """Why the step can't be replaced; empty: it can."""
        own = vars(self._optimizer).get("step")
        if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):
            return "its step was replaced by other code"
        return ""

    def set(self, on: bool) -> None:
        """Compile the step, which happens at the next one; False: as the script has it."""
        if on == (self._patch is not None):
            return
        optimizer = self._optimizer
        if on:
            self._capturable = [g.get("capturable") for g in optimizer.param_groups]
            if self._compiled is None:
                self._compiled = WithRates(_compile(raw_step(optimizer)))
            _IN_FORCE[optimizer] = self._compiled
            self._patch = patching.replace(optimizer, "step", self._method())
            return
        assert self._patch is not None
        patching.restore(self._patch)
        self._patch = None
        _IN_FORCE.pop(optimizer, None)
        self._restore_capturable()

    def _method(self) -> Any:
        """A bound method, which is what schedulers expect to wrap."""

        def run(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            # Looked up each time: a scheduler made meanwhile keeps calling this function.
            before = _graphs()
            try:
                return step_in_force(optimizer)(optimizer, *args, **kwargs)
            finally:
                self.compilations += _graphs() != before

        hooked = Optimizer.profile_hook_step(run)
        own = vars(self._optimizer).get("step")

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if own is not None:
                optimizer._opt_called = True  # as the scheduler's wrapper says it
            return hooked(optimizer, *args, **kwargs)

        if own is not None:
            vars(step)["_wrapped_by_lr_sched"] = True
        return types.MethodType(step, self._optimizer)

    def _restore_capturable(self) -> None:
        """Dynamo sets this flag by itself, and keeps `step` on the device."""
        groups = self._optimizer.param_groups
        for group, own in zip(groups, self._capturable, strict=False):
            if own is None or own == group.get("capturable"):
                continue
            group["capturable"] = own
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                if isinstance(state.get("step"), torch.Tensor) and not group.get("fused"):
                    state["step"] = state["step"].cpu()


def _graphs() -> int:
    """Graphs that dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _compile(step: Step) -> Step:
    from hasten.instrument.seams.root import allow_variants

    allow_variants()
    compiled: Step = torch.compile(step)
    return compiled
