"""Seam: the call of a root, an outermost module whose parameters an optimizer owns.

The seam sits in the instance attribute `_compiled_call_impl`, which `nn.Module.__call__` looks up
anyway: it costs other modules nothing and is neither pickled nor deep-copied (checkpoints and
moving averages of the model stay clean). Only calls as training makes them (gradients on, and
the mode in which it was seen training) are redirected; validation runs as the script has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from hasten.instrument import patching
from hasten.instrument.seams.blocks import Blocks
from hasten.instrument.seams.kept import KeptModules
from hasten.instrument.seams.layout import Layout, to_channels_last, to_contiguous
from hasten.instrument.seams.placement import move_module, to_device
from hasten.instrument.seams.splitting import Splitting
from hasten.instrument.seams.wide_functions import WideFunctions

Call = Callable[..., Any]
#: Sees one redirected call: (root, run, args, kwargs) -> the result of run(*args, **kwargs).
Observer = Callable[["Root", Call, tuple[Any, ...], dict[str, Any]], Any]

_REDUCED = (torch.bfloat16, torch.float16)
_GRAPH_NODES = 2000  # of a result's graph that are searched for a cast


class RootEvents(Protocol):
    """What a root tells; both calls are on the hot path."""

    def root_entered(self, root: Root, training: bool) -> None:
        """A call begins."""

    def root_left(self, root: Root, training: bool) -> None:
        """It has ended."""


class Root:
    """One root module under instrumentation."""

    def __init__(self, module: torch.nn.Module, training: bool, events: RootEvents) -> None:
        self.module = module
        self.name = type(module).__name__
        self.training = training
        self.observer: Observer | None = None
        self.calls = 0
        self.reduced_calls = 0
        self._events = events
        self._eager: Call = module._compiled_call_impl or module._call_impl
        self.own_compile = module._compiled_call_impl is not None or is_compiled(module)
        self._run: Call = self._eager
        self._compiled: dict[str, Call] = {}
        self._autocast: torch.dtype | None = None
        self._layout = Layout(module)
        self._kept = KeptModules(module, self.name)
        self._wide: WideFunctions | None = None
        self.splitting = Splitting(module)
        self.blocks = Blocks(module)
        self._own_dtypes: dict[str, torch.dtype] = {}  # of outputs under the script's autocast
        self._device = self.own_device = _device_type(module)
        self.placed = False
        self._patch: patching.Patch | None = None

    def install(self) -> None:
        """Redirect the module's calls."""
        self._patch = patching.replace(self.module, "_compiled_call_impl", self._called)

    def uninstall(self) -> str | None:
        """Let the module's calls go their own way again."""
        patch, self._patch = self._patch, None
        return patching.restore(patch) if patch else None

    @property
    def device(self) -> str:
        """Type of the device that its parameters are on: "cpu", "cuda", ..."""
        return self._device

    @property
    def reduced(self) -> torch.dtype | None:
        """The format in which its calls run under autocast now; None: as the script has it."""
        return self._autocast if self._autocast in _REDUCED else None

    @property
    def convolutions(self) -> int:
        """Weights of two-dimensional convolutions."""
        return self._layout.convolutions

    @property
    def converted(self) -> int:
        """Convolution weights that lie in channels_last now."""
        return self._layout.converted

    @property
    def compiled(self) -> bool:
        """Whether calls run compiled now, by us or by the script."""
        return self.own_compile or self._run is not self._eager

    # --- what optimisations speak to ------------------------------------------------------

    def autocast(
        self, dtype: str | None, keep: Sequence[str] = (), functions: bool = False
    ) -> None:
        """Run calls under autocast with this dtype; None: as the script has it.

        "bfloat16" or "float16"; "float32" turns off the autocast that the script is in.
        Modules that `keep` names stay in float32, and with `functions` losses, softmax, sums and
        the like; calls are then not compiled, since dynamo would not see that.
        """
        self._autocast = getattr(torch, dtype) if dtype else None
        self._kept.set(keep if dtype else (), self._device)
        self._wide = WideFunctions(self._device) if dtype and functions else None
        self._changed()

    def place(self, device: str | None) -> None:
        """Run calls on this device, with all that belongs to the root; None: on its own."""
        self.placed = device is not None
        self._device = device or self.own_device
        move_module(self.module, self._device)
        self._changed()

    def channels_last(self, on: bool) -> None:
        """Lay convolution weights and images out in channels_last; False: as the script has it."""
        self._layout.set(on)
        self._changed()

    def compile(self, options: dict[str, Any] | None) -> None:
        """Run calls through torch.compile with these keyword arguments; None: eager.

        A compiled form is kept, so that going back to it costs nothing.
        """
        if options is None or self._kept or self._wide is not None:
            self._run = self._eager
        else:
            key = repr(sorted(options.items()))
            if key not in self._compiled:
                self._compiled[key] = _compile(self._eager, options)
            self._run = self._compiled[key]
        self._changed()

    @property
    def graphs(self) -> tuple[int, int, int]:
        """Frames compiled, graph breaks and fall-backs to eager, in this process so far."""
        from torch._dynamo.utils import counters

        return (
            counters["frames"]["ok"],
            sum(counters["graph_break"].values()),
            sum(n for text, n in counters["unimplemented"].items() if "limit" in text),
        )

    # --- the call -------------------------------------------------------------------------

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        training = torch.is_grad_enabled() and self.module.training == self.training
        self._events.root_entered(self, training)
        try:
            if not training:
                return self._eager(*args, **kwargs)
            self.calls += 1
            if self.observer is not None:
                return self.observer(self, self.run, args, kwargs)
            return self.run(*args, **kwargs)
        finally:
            self._events.root_left(self, training)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The call under the present setting, without events or observer."""
        if self.placed:
            args, kwargs = to_device(args, self._device), to_device(kwargs, self._device)
            return to_device(self._in_layout(args, kwargs), self.own_device)
        return self._in_layout(args, kwargs)

    def _in_layout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._layout.on:
            return self._in_precision(args, kwargs)
        args, kwargs = to_channels_last(args), to_channels_last(kwargs)
        # What follows the root was written for images in rows.
        return to_contiguous(self._in_precision(args, kwargs))

    def _in_precision(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._autocast is None:
            result = self._forward(*args, **kwargs)
            if not self._own_dtypes and torch.is_autocast_enabled(self._device):
                self._own_dtypes = _dtypes(result)
            return result
        if self._autocast is torch.float32:
            return self._without_autocast(args, kwargs)
        with torch.autocast(self._device, dtype=self._autocast), self._wide or nullcontext():
            result = self._forward(*args, **kwargs)
        if self.reduced_calls == 0:
            self.reduced_calls += self._run is not self._eager or _has_cast(result)
        # What follows the root (the loss, metrics) was written for float32.
        return _in_float32(result)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.splitting.on:
            return self.splitting.call(self._run, args, kwargs)
        return self._run(*args, **kwargs)

    def _without_autocast(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in the formats of its parameters, with the outputs that the script knows."""
        with torch.autocast(self._device, enabled=False):
            result = self._forward(*_in_float32(args), **_in_float32(kwargs))
        found = _dtypes(result)
        if found == self._own_dtypes or found.keys() != self._own_dtypes.keys():
            return result
        from hasten.instrument.proof.structure import Rebuild, tensors_in

        wanted = {id(t): self._own_dtypes[path] for path, t in tensors_in(result).items()}
        return Rebuild(lambda tensor: tensor.to(wanted[id(tensor)]))(result)

    def _changed(self) -> None:
        self.calls = self.reduced_calls = 0
        torch.clear_autocast_cache()


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the script itself has compiled this module."""
    return type(module).__module__.startswith("torch._dynamo")


def allow_variants() -> None:
    """Let dynamo compile one function in more variants than it would by itself."""
    import torch._dynamo

    # Autocast, threads and grad mode are guards, and every root shares one code object: at the
    # default limit of 8 variants dynamo would silently go back to eager in the middle of a search.
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else None
    name = limit or "cache_size_limit"
    if getattr(torch._dynamo.config, name) < 64:
        patching.replace(torch._dynamo.config, name, 64)


def _compile(function: Call, options: dict[str, Any]) -> Call:
    allow_variants()
    compiled: Call = torch.compile(function, **options)
    return compiled


def _in_float32(result: Any) -> Any:
    """A nested result with its tensors in float32, also inside classes of the script."""
    if isinstance(result, torch.Tensor):
        return _to_float32(result)
    from hasten.instrument.proof.structure import Rebuild, tensors_in

    if all(tensor.dtype not in _REDUCED for tensor in tensors_in(result).values()):
        return result
    return Rebuild(_to_float32)(result)


def _dtypes(result: Any) -> dict[str, torch.dtype]:
    """Formats of the floating tensors in a result, by their path."""
    from hasten.instrument.proof.structure import tensors_in

    return {path: tensor.dtype for path, tensor in tensors_in(result).items()}


def _to_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _REDUCED else tensor


def _device_type(module: torch.nn.Module) -> str:
    for tensor in module.parameters():
        return tensor.device.type
    return "cpu"


def _has_cast(result: Any) -> bool:
    """Whether autocast changed any precision on the way to this result."""
    from hasten.instrument.proof.structure import tensors_in

    nodes = [tensor.grad_fn for tensor in tensors_in(result).values()]
    seen: set[Any] = set()
    while nodes and len(seen) < _GRAPH_NODES:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "ToCopyBackward0":
            return True
        nodes.extend(following for following, _ in node.next_functions)
    return False
