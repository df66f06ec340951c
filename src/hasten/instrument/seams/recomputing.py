"""Seam: a call whose intermediate results are computed again in the backward pass.

torch's checkpoint puts its own generators and autocast back. A recomputation also has to draw what
the call drew from Python's and NumPy's generators, and must not write into buffers a second time
(the running statistics of a batch norm would move twice), so that is put back here.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Call = Callable[..., Any]

#: Backward passes run in threads of their own on accelerators.
_recomputing = threading.local()


def recomputing() -> bool:
    """Whether this thread is computing a call once more: nothing may be changed about it."""
    return getattr(_recomputing, "depth", 0) > 0


class Drawn:
    """Where Python's and NumPy's generators stand; torch's are its checkpoint's business."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state() if numpy is not None else None

    def put(self) -> None:
        """Let the next draw start from here."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)


def recomputed(module: torch.nn.Module, run: Call, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of `run(*args, **kwargs)`, whose graph keeps nothing but the arguments.

    Args:
        module: that `run` calls.
        run: the call.
        args, kwargs: its arguments, which it must not change in place.
    """
    from hasten.instrument.proof.structure import tensors_in

    holders = [m for m in module.modules() if m._buffers]
    then = Drawn()

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _as_then(holders, then)

    def call(*_: Any) -> Any:
        return run(*args, **kwargs)

    # checkpoint looks at its arguments for the devices whose generators it has to put back.
    tensors = tensors_in((args, kwargs)).values()
    return checkpoint(call, *tensors, use_reentrant=False, context_fn=contexts)


@contextmanager
def _as_then(holders: list[torch.nn.Module], then: Drawn) -> Iterator[None]:
    """Draw again what was drawn, and write into copies of the buffers."""
    now, buffers = Drawn(), [dict(m._buffers) for m in holders]
    _recomputing.depth = getattr(_recomputing, "depth", 0) + 1
    try:
        for module in holders:
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.detach().clone()
        then.put()
        yield
    finally:
        _recomputing.depth -= 1
        for module, own in zip(holders, buffers, strict=True):
            module._buffers.update(own)
        now.put()


def writes(module: torch.nn.Module) -> dict[str, Any]:
    """What a call of a module may have written to: marks to compare before and after it.

    Returns:
        By qualified name: version and identity of each buffer, and each plain number that a
        module keeps as an attribute.
    """
    marks: dict[str, Any] = {n: (id(b), b._version) for n, b in module.named_buffers()}
    for prefix, child in module.named_modules():
        for name, value in vars(child).items():
            if isinstance(value, (int, float)) and name != "training":
                marks[f"{prefix}.{name}".lstrip(".")] = value
    return marks


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names whose marks differ."""
    return [name for name in after if before.get(name) != after[name]]
