"""The seams of one recognised loop: what optimisations speak to, and what the profile is read from.

Implements the `Seams` protocol of `hasten.optimisations`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from hasten.instrument.detection import Loop
from hasten.instrument.seams.clearing import Clearing
from hasten.instrument.seams.debugging import Debugging
from hasten.instrument.seams.flags import ProcessFlags, denormal_share
from hasten.instrument.seams.optimizer import OptimizerHandle, parameters
from hasten.instrument.seams.root import Root, RootEvents
from hasten.instrument.seams.scaling import LossScaling
from hasten.optimisations import discover
from hasten.records import OptimizerFacts, RootFacts, Setting


class LoopSeams:
    """Roots, optimizers, loader and threads of the script's training loop."""

    def __init__(
        self,
        loop: Loop,
        optimizers: list[Optimizer],
        loader: Any | None,
        events: RootEvents,
        debugging: Debugging | None = None,
    ) -> None:
        self.loader = loader  # an OwnedLoader, or None
        self.roots = [Root(module, training, events) for module, training in loop.roots]
        self.optimizers = [OptimizerHandle(optimizer) for optimizer in optimizers]
        self.setting: Setting = {}
        self.own_threads = torch.get_num_threads()
        self.device = _device(self.roots, optimizers)
        self.watched: dict[int, Watched] = {}
        self.flags = ProcessFlags()
        self.debugging = debugging or Debugging()
        self.scaling = LossScaling(self._modules, self._stepping)
        self.clearing = Clearing(self._stepping, self._names)

    def _modules(self) -> list[torch.nn.Module]:
        return [root.module for root in self.roots]

    def _stepping(self) -> list[Optimizer]:
        return [handle.optimizer for handle in self.optimizers]

    def _names(self) -> dict[int, str]:
        return {id(p): name for m in self._modules() for name, p in m.named_parameters()}

    @property
    def denormals(self) -> float:
        """The part of parameters, gradients and optimizer state that is denormal."""
        owned = [p for optimizer in self._stepping() for p in parameters(optimizer)]
        held = [*owned, *(p.grad for p in owned if p.grad is not None)]
        states = [s for o in self._stepping() for s in o.state.values() if isinstance(s, dict)]
        held += [t for s in states for t in s.values() if isinstance(t, torch.Tensor)]
        return denormal_share(held)

    def threads(self, count: int | None) -> None:
        """Set the intra-op threads; None: as the script has them."""
        torch.set_num_threads(self.own_threads if count is None else count)

    def apply(self, setting: Setting) -> None:
        """Go from the present setting to `setting`; between two iterations only."""
        units = discover()
        gone = [name for name in self.setting if setting.get(name) != self.setting[name]]
        for name in reversed(ordered(gone)):
            units[name].disable(self)
            del self.setting[name]
        for name in ordered([name for name in setting if name not in self.setting]):
            units[name].enable(self, setting[name])
            self.setting[name] = setting[name]

    def change_loader(self, loader: Any | None) -> None:
        """Another loader feeds the loop from now on, as the present setting wants it."""
        self.loader = loader
        for name, value in self.setting.items():
            if discover()[name].needs == "loader" and loader is not None:
                discover()[name].enable(self, value)

    def no_effect(self) -> dict[str, str]:
        """The units in force that did nothing, and why."""
        found = {
            name: discover()[name].took_effect(self, value) for name, value in self.setting.items()
        }
        stale = self.loader.staleness.trouble if self.loader is not None else ""
        if stale and "loader-workers" in self.setting:
            found["loader-workers"] = stale
        return {name: reason for name, reason in found.items() if reason is not None}

    def watch(self) -> None:
        """Look at the arguments of root calls until `unwatch`."""
        for root in self.roots:
            self.watched[id(root)] = Watched()
            root.observer = self._observe
        self.clearing.watch()

    def unwatch(self) -> None:
        """Stop looking."""
        self.clearing.unwatch()
        for root in self.roots:
            root.observer = None

    def _observe(self, root: Root, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.watched[id(root)].see(args, kwargs, self.device)
        return run(*args, **kwargs)


def ordered(names: list[str]) -> list[str]:
    """Names so that each comes after those that it must be enabled after."""
    done: list[str] = []
    left = sorted(names)
    while left:
        ready = [n for n in left if not set(discover()[n].after) & set(left)]
        done += ready or left
        left = [n for n in left if n not in done]
    return done


class Watched:
    """What the arguments of one root's calls looked like."""

    def __init__(self) -> None:
        self.calls = 0
        self.shapes: Counter[tuple[tuple[int, ...], ...]] = Counter()
        self.autocast: str | None = None

    def see(self, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> None:
        """Remember one call."""
        self.calls += 1
        leaves = pytree.tree_leaves((args, kwargs))
        self.shapes[tuple(tuple(t.shape) for t in leaves if isinstance(t, torch.Tensor))] += 1
        if torch.is_autocast_enabled(device):
            self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    @property
    def shapes_vary(self) -> bool:
        """More than a rare odd batch at the end of an epoch."""
        common = sum(n for _, n in self.shapes.most_common(2))
        return len(self.shapes) > 4 or self.calls - common > 0.1 * self.calls


def root_facts(root: Root, watched: Watched, iterations: int) -> RootFacts:
    """A root as the profile tells it."""
    tensors = list(root.module.parameters())
    return RootFacts(
        name=root.name,
        parameters=sum(t.numel() for t in tensors),
        tensors=len(tensors),
        dtypes=tuple(sorted({str(t.dtype).removeprefix("torch.") for t in tensors})),
        device=str(tensors[0].device) if tensors else "cpu",
        calls=watched.calls / max(1, iterations),
        shapes_vary=watched.shapes_vary,
        own_compile=root.own_compile,
        own_autocast=watched.autocast,
        modules=sum(1 for _ in root.module.modules()),
        convolutions=root.convolutions,
        channels_last=root.converted,
    )


def optimizer_facts(handle: OptimizerHandle, iterations: int) -> OptimizerFacts:
    """An optimizer as the profile tells it."""
    optimizer, cls = handle.optimizer, type(handle.optimizer)
    tensors = list(parameters(optimizer))
    group = optimizer.param_groups[0]
    return OptimizerFacts(
        name=cls.__name__,
        module=cls.__module__,
        groups=len(optimizer.param_groups),
        tensors=len(tensors),
        elements=sum(t.numel() for t in tensors),
        foreach=group.get("foreach"),
        fused=group.get("fused"),
        closure=isinstance(optimizer, torch.optim.LBFGS),
        steps=handle.steps / max(1, iterations),
        sparse=any(t.grad is not None and t.grad.is_sparse for t in tensors),
        known=cls.__module__.startswith("torch.optim"),
        supports_fused=handle.supports_fused,
        compilable=handle.compilable,
    )


def _device(roots: list[Root], optimizers: list[Optimizer]) -> str:
    for root in roots:
        for tensor in root.module.parameters():
            return tensor.device.type
    for optimizer in optimizers:
        for owned in parameters(optimizer):
            return owned.device.type
    return "cpu"
