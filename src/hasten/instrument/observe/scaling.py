"""Observes float16: where it is used, whether losses are scaled, and clipping of scaled gradients.

Facts: "half" (backward passes of a loss that a root made in float16), "how", "place", "scaled" (a
scaler was at work), "by_hand" (the loss was multiplied by a large number), "zeros" (share of
gradient elements that were exactly zero), "libraries" (others that scale losses); and "clips", a
list of places where gradients were clipped while they were still scaled.
"""

from __future__ import annotations

import functools
import sys
import weakref
from dataclasses import asdict
from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import place, users_frame
from hasten.instrument.seams.optimizer import parameters

_STEPS = 12  # whose gradients are looked at
_HEAD = 4096  # elements of each tensor
_BY_HAND = 16.0  # a loss multiplied by more than this is scaled on purpose
_OWN_SCALING = ("deepspeed", "apex", "colossalai", "fairscale", "megatron")
_Clip = dict[str, Any]


class Scaling(Observer):
    """Loss scaling."""

    name: ClassVar[str] = "scaling"

    def __init__(self) -> None:
        self._half = self._by_hand = 0
        self._how = ""
        self._fresh = False
        self._at: tuple[str, int, str] | None = None
        self._zeros: list[torch.Tensor] = []
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()  # that have scaled since update
        self._clips: dict[tuple[str, int, str] | None, _Clip] = {}

    # --- hooks ------------------------------------------------------------------------------

    def start(self, log: Log) -> None:
        """Hook the scaler and clipping."""
        from torch.nn.utils import clip_grad

        scaler = torch.amp.GradScaler
        log.replace(scaler, "scale", self._scale(scaler.scale))
        log.replace(scaler, "update", self._update(scaler.update))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = self._clip(getattr(clip_grad, name))
            log.replace(clip_grad, name, clip)
            log.replace(torch.nn.utils, name, clip)

    def _scale(self, scale: Any) -> Any:
        scalers = self._scalers

        @functools.wraps(scale)
        def scaled(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                scalers.add(scaler)
            return scale(scaler, *args, **kwargs)

        return scaled

    def _update(self, update: Any) -> Any:
        scalers = self._scalers

        @functools.wraps(update)
        def updated(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            scalers.discard(scaler)
            return update(scaler, *args, **kwargs)

        return updated

    def _clip(self, clip: Any) -> Any:
        observer = self

        @functools.wraps(clip)
        def clipped(tensors: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
            if not observer._scalers:
                return clip(tensors, limit, *args, **kwargs)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            scale = observer._still_scaled(tensors)
            result = clip(tensors, limit, *args, **kwargs)
            if scale is not None:
                observer._clipped(users_frame(), scale, result, limit)
            return result

        return clipped

    def _still_scaled(self, tensors: list[torch.Tensor]) -> float | None:
        """The scale that is still in these gradients; None: none, as far as is known."""
        clipped = {id(tensor) for tensor in tensors}
        for scaler in self._scalers:
            scale = float(scaler.get_scale())
            for optimizer in self._optimizers:
                if not any(id(p) in clipped for p in parameters(optimizer)):
                    continue
                states = getattr(scaler, "_per_optimizer_states", {})
                stage = states.get(id(optimizer), {}).get("stage")
                if getattr(stage, "name", "READY") == "READY" and scale > 1:
                    return scale
        return None

    def _clipped(self, at: Any, scale: float, norm: Any, limit: Any) -> None:
        entry = self._clips.setdefault(at, {"count": 0})
        entry.update(count=entry["count"] + 1, scale=scale, limit=float(limit), norm=norm)

    # --- events -----------------------------------------------------------------------------

    def root_entered(self, log: Log, module: Any, training: bool) -> None:
        """Is this call in float16?"""
        if not training:
            return
        first = next(module.parameters(), None)
        device = first.device.type if first is not None else "cpu"
        self._fresh = False
        if torch.is_autocast_enabled(device):
            self._fresh = torch.get_autocast_dtype(device) is torch.float16
            how = "autocast"
        elif first is not None:
            self._fresh = first.dtype is torch.float16
            how = "weights"
        if self._fresh:
            self._how = how

    def before_backward(self, log: Log, tensors: Any) -> None:
        """Is its loss made in float16, and scaled?"""
        if not self._fresh or not isinstance(tensors, torch.Tensor):
            return
        self._half += 1
        self._by_hand += _scaled_by_hand(tensors)
        if self._at is None:
            self._at = users_frame(2)

    @torch.no_grad()
    def before_step(self, log: Log, optimizer: Any) -> None:
        """How much of the gradients has become zero."""
        self._optimizers.add(optimizer)
        if not self._fresh or len(self._zeros) >= _STEPS:
            return
        grads = [p.grad for p in parameters(optimizer) if p.grad is not None]
        dense = [g.reshape(-1)[:_HEAD] for g in grads if g.layout is torch.strided]
        if dense:
            device = dense[0].device
            self._zeros.append(torch.cat([(g == 0).to(device) for g in dense]).float().mean())

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """All of it as plain data."""
        clips = []
        for at, entry in self._clips.items():
            norm = entry.pop("norm")
            entry["norm"] = float(norm) if isinstance(norm, torch.Tensor) else None
            clips.append({**entry, "place": asdict(place(*at)) if at is not None else None})
        facts: dict[str, Any] = {"clips": clips} if clips else {}
        if self._half:
            facts |= {
                "half": self._half,
                "how": self._how,
                "place": asdict(place(*self._at)) if self._at is not None else None,
                "scaled": conductor.own_scaler,
                "by_hand": self._by_hand,
                "zeros": float(torch.stack(self._zeros).mean()) if self._zeros else 0.0,
                "libraries": [name for name in _OWN_SCALING if name in sys.modules],
            }
        return facts


def _scaled_by_hand(loss: torch.Tensor) -> bool:
    """Whether the last thing done to a loss was to multiply it by a large number."""
    node = loss.grad_fn
    if node is None or node.name() != "MulBackward0":
        return False
    factor = getattr(node, "_saved_other", None)
    if factor is None:  # torch keeps a number only where it is needed: multiplying needs it
        return False
    return (
        abs(float(factor)) >= _BY_HAND
        if not isinstance(factor, torch.Tensor)
        else bool(factor.numel() == 1 and abs(float(factor)) >= _BY_HAND)
    )
