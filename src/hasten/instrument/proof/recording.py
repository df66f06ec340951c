"""What one iteration showed at the seams: calls of roots and steps of optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil
import torch
from torch.optim import Optimizer

from hasten.instrument.proof.calls import RecordedCall, size_before
from hasten.instrument.proof.steps import RecordedStep
from hasten.instrument.seams.optimizer import OptimizerHandle
from hasten.instrument.seams.root import Call, Observer, Root

CALLS = 4  # of one root that are kept: an LBFGS closure makes twenty an iteration
MOST_BYTES = 4 << 30


class Recording:
    """Records one iteration, for `judge`.

    A recording never disturbs the iteration that it watches: what goes wrong in it is kept as the
    reason why it can't be used.

    Args:
        roots: whose calls are recorded.
        optimizers: whose steps are recorded.
        limit_bytes: what the copies may take; None: a third of the free memory, at most 4 GiB.
        calls: of each root that are kept.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        optimizers: Sequence[OptimizerHandle],
        limit_bytes: int | None = None,
        calls: int = CALLS,
    ) -> None:
        self.roots, self.optimizers = list(roots), list(optimizers)
        self.limit = limit_bytes if limit_bytes is not None else _third_of_free(self.roots)
        self.calls: list[RecordedCall] = []
        self.steps: list[RecordedStep] = []
        self.passed_over = 0  # calls beyond those that are kept
        self.refused: dict[str, str] = {}  # name of a root or optimizer -> why it has no record
        self.sensitivities: dict[Any, Any] = {}  # measured once a recording, by `judge`
        self._most = calls
        self._earlier: list[tuple[Root, Observer | None]] = []

    def start(self) -> None:
        """Record the calls from now on."""
        self._earlier = [(root, root.observer) for root in self.roots]
        for root in self.roots:
            root.observer = self._observe

    @property
    def waits(self) -> bool:
        """Whether the gradients of all calls are still to come.

        A loop that fetches its next batch between forward and backward has its border there, and
        the backward pass of a call belongs to the next iteration.
        """
        recorded = [call for call in self.calls if call.refused is None]
        return bool(recorded) and not any(call.gradients for call in recorded)

    def hold(self) -> None:
        """Record no further call, but go on waiting for gradients."""
        for root, observer in self._earlier:
            root.observer = observer
        self._earlier = []

    def finish(self) -> None:
        """Record no more; calls whose outputs got no gradient are dropped."""
        self.hold()
        for call in self.calls:
            call.close()
        for call in self.calls:
            if call.refused is not None:
                self.refused.setdefault(call.root.name, call.refused)
            elif not call.gradients:
                why = f"no gradient came back to the outputs of {call.root.name}"
                self.refused.setdefault(call.root.name, why)
        self.calls = [call for call in self.calls if call.gradients and call.refused is None]
        self._drop_large()

    def before_step(self, optimizer: Optimizer | OptimizerHandle) -> None:
        """Record an optimizer that is about to step; to be called from its pre-hook."""
        real = optimizer.optimizer if isinstance(optimizer, OptimizerHandle) else optimizer
        if all(handle.optimizer is not real for handle in self.optimizers):
            return
        if any(step.optimizer is real for step in self.steps):
            return
        limit = (self.limit - self.size) // (2 * max(1, len(self.optimizers)))
        try:
            step = RecordedStep(real, self.names(), max(0, limit))
        except Exception as error:  # the script's own classes: anything may happen
            self.refused[type(real).__name__] = f"its state can't be copied ({_short(error)})"
            return
        self.steps.append(step)

    @property
    def complete(self) -> str | None:
        """None when every root has a call that can be judged, else why not."""
        return self.lacks("model")

    @property
    def usable(self) -> bool:
        """Whether there is any call to judge."""
        return bool(self.calls)

    def lacks(self, kind: str) -> str | None:
        """None when there is all that is needed to judge `kind` ("model", "optimizer", "both")."""
        reasons = []
        if kind in ("model", "both"):
            seen = {id(call.root) for call in self.calls}
            reasons += [self._why(r.name) for r in self.roots if id(r) not in seen]
            if not self.roots:
                reasons.append("no root to record")
        if kind in ("optimizer", "both"):
            stepped = {id(step.optimizer) for step in self.steps if step.originals}
            missing = [h for h in self.optimizers if id(h.optimizer) not in stepped]
            reasons += [self.refused.get(h.name, f"no step of {h.name} was seen") for h in missing]
        return reasons[0] if reasons else None

    @property
    def size(self) -> int:
        """Bytes of all copies."""
        return sum(c.size for c in self.calls) + sum(s.size for s in self.steps)

    def names(self) -> dict[int, str]:
        """Qualified names of parameters by identity, with the root's name if there are several."""
        return {
            id(parameter): self.qualified(root, name)
            for root in self.roots
            for name, parameter in root.module.named_parameters()
        }

    def qualified(self, root: Root, name: str) -> str:
        """How a parameter of a root is called in a report."""
        return f"{root.name}.{name}" if len(self.roots) > 1 else name

    def _observe(self, root: Root, run: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if sum(call.root is root for call in self.calls) >= self._most:
            self.passed_over += 1
            return run(*args, **kwargs)
        room = self.limit - self.size
        if (size := size_before(root, args, kwargs)) > room:
            self.refused[root.name] = self._too_large(root, size)
            return run(*args, **kwargs)
        try:
            call = RecordedCall(root, args, kwargs, room)
        except Exception as error:  # objects of the script: anything may happen
            self.refused[root.name] = f"a call of {root.name} can't be copied ({_short(error)})"
            return run(*args, **kwargs)
        result = call.make(run, args, kwargs)
        if call.refused is None:
            self.calls.append(call)
        else:
            self.refused[root.name] = call.refused
        return result

    def _drop_large(self) -> None:
        """Output gradients arrive later, and may be what makes it too much."""
        while self.calls and self.size > self.limit:
            call = self.calls.pop()
            self.refused.setdefault(call.root.name, self._too_large(call.root, call.size))

    def _too_large(self, root: Root, size: int) -> str:
        return (
            f"a call of {root.name} takes {_mebibytes(size)} to record, "
            f"more than the {_mebibytes(self.limit)} allowed"
        )

    def _why(self, name: str) -> str:
        return self.refused.get(name, f"no training call of {name} in this iteration")


def _third_of_free(roots: Sequence[Root]) -> int:
    free = psutil.virtual_memory().available
    for root in roots:
        if root.device == "cuda":
            free = min(free, torch.cuda.mem_get_info()[0])
    return int(min(free // 3, MOST_BYTES))


def _mebibytes(size: int) -> str:
    return f"{max(1, round(size / (1 << 20)))} MiB"


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"
