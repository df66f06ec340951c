"""Recognises the training loop by what happens, not by how it is written.

The training loader is the one whose batches are followed by backward passes. Roots are the
outermost modules that are called with gradients on and whose parameters an optimizer owns.
Global module hooks, which cost about a microsecond a module, are in place only until the loop
is known. A script that compiles modules itself is watched without them, since dynamo guards on
them: the modules that it compiled are its roots.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument import patching
from hasten.instrument.seams.optimizer import parameters
from hasten.instrument.seams.root import is_compiled

_LED = 2  # batches followed by a backward pass until a loader counts as the training loader
_STEPS_WITHOUT_LOADER = 3
_BACKWARDS_BY_HAND = 12  # without any step until the loop counts as one without an optimizer
_STEPS_ON_ONE_BATCH = 25  # a batch may serve several steps (a critic's, a closure's)


@dataclass
class Loop:
    """What was recognised."""

    loader: Any | None  # the training DataLoader; None: an iteration starts with a step
    stepper: Optimizer | None  # whose step is the border where there is no loader; None as well
    # where parameters are changed by hand: then a backward pass is the border
    roots: list[tuple[torch.nn.Module, bool]]  # and whether it trains in training mode
    others: weakref.WeakSet[Any]  # loaders read meanwhile that are not the training loader
    companions: set[int] = field(default_factory=set)  # ids of loaders read side by side with it
    own_compile: bool = False  # the script compiles a model, or a function that calls one
    notes: list[str] = field(default_factory=list)


class Detector:
    """Collects events until the loop is known."""

    def __init__(self) -> None:
        self._fetched: Counter[int] = Counter()
        self._led: Counter[int] = Counter()
        self._loaders: dict[int, Any] = {}
        self._since_backward: list[int] = []
        self._foreign: set[int] = set()  # loaders that another thread fetches from
        self._steps: Counter[int] = Counter()
        self._steps_since_fetch = self._backwards = 0
        self._optimizers: list[Optimizer] = []
        self._thread: int | None = None
        self._calls: dict[int, tuple[weakref.ref[torch.nn.Module], bool]] = {}
        self._compiled: list[weakref.ref[torch.nn.Module]] = []
        self._compiles = False
        self._hooks = ModuleCalls(self._outermost)
        self._patch: patching.Patch | None = None

    def start(self) -> None:
        """Begin to look."""
        self._patch = patching.replace(torch, "compile", self._seen_compile(torch.compile))
        self._hooks.install()

    def stop(self) -> None:
        """Look no more; every hook is gone."""
        self._hooks.uninstall()
        if self._patch is not None:
            patching.restore(self._patch)
            self._patch = None

    # --- events ---------------------------------------------------------------------------

    def fetched(self, loader: Any) -> None:
        """A batch came from `loader`."""
        key = id(loader)
        self._loaders[key] = loader
        self._fetched[key] += 1
        self._steps_since_fetch = 0
        if self._thread is not None and threading.get_ident() != self._thread:
            self._foreign.add(key)
        if key not in self._since_backward:
            self._since_backward.append(key)

    def backward(self) -> None:
        """A backward pass began."""
        self._thread = threading.get_ident()
        self._backwards += 1
        self._lead()

    def _lead(self) -> None:
        """The batches since the last time were for what comes now."""
        for key in self._since_backward:
            self._led[key] += 1
        self._since_backward = []

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer stepped."""
        if all(known is not optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        self._steps[id(optimizer)] += 1
        self._steps_since_fetch += 1
        if not self._backwards:  # gradients come from torch.func or torch.autograd.grad
            self._thread = threading.get_ident()
            self._lead()

    def loop(self) -> Loop | None:
        """The loop, once it is known."""
        if not self._optimizers and self._backwards < _BACKWARDS_BY_HAND:
            return None
        loader = self._training_loader()
        patience = _STEPS_ON_ONE_BATCH if self._led else _STEPS_WITHOUT_LOADER
        alone = self._steps_since_fetch >= patience * len(self._optimizers)
        if loader is None and not alone:
            return None
        notes: list[str] = []
        if not self._optimizers:
            notes.append("no optimizer steps: parameters are changed by hand")
        if loader is not None and id(loader) in self._foreign:
            notes.append(
                "batches are fetched by another thread: an iteration is counted from "
                "one optimizer step to the next, and the loader is left as it is"
            )
            loader = None
        roots = self.roots() if self._backwards else []  # torch.func puts other weights in
        if not roots:
            notes.append(f"{self._why_no_root()}: precision and compilation can't be changed")
        others = weakref.WeakSet(seen for seen in self._loaders.values() if seen is not loader)
        companions = {key for key in self._loaders if self._led[key] > 0.5 * self._fetched[key]}
        stepper = self._optimizers[0] if self._optimizers else None
        return Loop(loader, stepper, roots, others, companions, self.compiles, notes)

    def passed(self, loop: Loop) -> int:
        """Iterations that had begun when the loop was recognised."""
        if loop.loader is not None:
            return self._fetched[id(loop.loader)]
        return self._backwards if loop.stepper is None else self._steps[id(loop.stepper)]

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that have stepped."""
        return self._optimizers

    # --- conclusions ----------------------------------------------------------------------

    def _training_loader(self) -> Any | None:
        led = [key for key in self._loaders if self._led[key] >= _LED]
        if not led:
            return None
        # The share, since the batch after which validation ended seems to lead as well; of
        # loaders that are read side by side, the first one.
        best = max(led, key=lambda key: self._led[key] / self._fetched[key])
        return self._loaders[best]

    def roots(self) -> list[tuple[torch.nn.Module, bool]]:
        """The roots that the optimizers seen so far own, and the mode they were called in."""
        owned = {id(p) for optimizer in self._optimizers for p in parameters(optimizer)}
        if self._compiles:
            called = [(m, m.training) for ref in self._compiled if (m := ref()) is not None]
        else:
            called = [(m, mode) for ref, mode in self._calls.values() if (m := ref()) is not None]
        mine = [(m, mode) for m, mode in called if _trained(m, owned)]
        inner = {id(child) for m, _ in mine for child in m.modules() if child is not m}
        return [(m, mode) for m, mode in mine if id(m) not in inner]

    def _why_no_root(self) -> str:
        if not self._backwards:
            return "gradients are taken without a backward pass"
        if self.compiles:
            return "the script compiles a function of its own, and the model runs inside it"
        return "no module is called through __call__ with gradients on"

    def _outermost(self, module: torch.nn.Module) -> None:
        if torch.is_grad_enabled():
            self._calls[id(module)] = (weakref.ref(module), module.training)

    def _seen_compile(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        def seen(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = compile(model, *args, **kwargs)
            self._compiles = True
            self._hooks.uninstall()
            owner = getattr(model, "__self__", None)
            for candidate in (result, owner):
                if isinstance(candidate, torch.nn.Module):
                    self._compiled.append(weakref.ref(candidate))
            return result

        return seen

    @property
    def compiles(self) -> bool:
        """Whether the script compiles by itself."""
        return self._compiles or any(
            is_compiled(m) for ref, _ in self._calls.values() if (m := ref()) is not None
        )


def _trained(module: torch.nn.Module, owned: set[int]) -> bool:
    """Whether an optimizer owns part of it; without any optimizer, whether it can be trained."""
    if not owned:
        return any(p.requires_grad for p in module.parameters())
    return any(id(p) in owned for p in module.parameters())


class ModuleCalls:
    """Global module hooks that tell of outermost calls only."""

    def __init__(self, called: Callable[[torch.nn.Module], None]) -> None:
        self._called = called
        self._depth = threading.local()
        self._handles: list[Any] = []

    def install(self) -> None:
        """Put the hooks in."""
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._before),
            module.register_module_forward_hook(self._after, always_call=True),
        ]

    def uninstall(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth == 0:
            self._called(module)

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth.value = max(0, getattr(self._depth, "value", 0) - 1)
