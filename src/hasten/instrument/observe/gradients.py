"""Observes gradients: whether they are cleared, when, and which parameters get any.

Facts: "optimizers", a list with one entry for each optimizer that stepped (see `Ledger.facts`).

What is compared is the beginning of some gradients, for the first steps only. A gradient that
is bit-equal to the one that the last step used when a backward pass begins, and is changed by
that pass, was added to; that holds however the script clears its gradients, or means to. Results
stay on the device until observing ends, so that nothing waits for it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import place, users_frame
from hasten.instrument.seams.optimizer import parameters

_STEPS = 24  # of each optimizer that are looked at
_TENSORS = 32  # of each optimizer, spread over the model
_HEAD = 64  # elements of each
_CALLS_FROM, _CALLS_TO = 3, 5  # steps between which module calls are seen, if there is a reason
_SURE = 0.9  # of the steps


class Ledger:
    """What happens to the gradients of one optimizer from step to step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.all = [p for p in parameters(optimizer) if p.requires_grad]
        device = self.all[0].device if self.all else torch.device("cpu")
        near = [p for p in self.all if p.device == device]
        self.chosen = near[:: max(1, -(-len(near) // _TENSORS))]
        sizes = [min(_HEAD, p.numel()) for p in self.chosen]
        self.ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
        self._empty = [torch.zeros(size, device=device) for size in sizes]
        self.never = {id(p): p for p in self.all}
        self.steps = 0
        self.norms: list[torch.Tensor] = []
        self.windows: list[tuple[int, Any]] = []  # batches with a backward, of which in vain
        nothing = torch.zeros(sum(sizes), dtype=torch.bool, device=device)
        self._stale: torch.Tensor | None = None  # gradients as the last step used them
        self._before = nothing.float()
        self._repeated = nothing
        self._carried = nothing
        self.carries = nothing.int()  # steps with a gradient that an earlier step had used
        self._had = nothing.any()
        self.emptied = self._had.int()
        self._batches, self._batch, self._in_vain = 0, -1, self._had.int()

    @property
    def open(self) -> bool:
        """Whether it still looks."""
        return self.steps < _STEPS and bool(self.chosen)

    def _heads(self) -> torch.Tensor:
        pieces = []
        for parameter, empty in zip(self.chosen, self._empty, strict=True):
            grad = parameter.grad
            plain = grad is not None and grad.layout is torch.strided
            pieces.append(grad.reshape(-1)[:_HEAD].float() if plain and grad is not None else empty)
        return torch.cat(pieces)

    def before_backward(self, batch: int, idle: bool) -> None:
        """`batch`: its number; `idle`: no optimizer has stepped since the last backward pass."""
        self._before = self._heads()
        there = self._before != 0
        self._carried = self._carried & there
        self._repeated = (
            there & (self._before == self._stale)
            if self._stale is not None
            else (torch.zeros_like(there))
        )
        if batch != self._batch:
            if idle and self._batches:
                self._in_vain = self._in_vain + (self._had & ~there.any())
            self._batch = batch
            self._batches += 1

    def after_backward(self) -> None:
        """What was there before and has changed was added to."""
        now = self._heads()
        self._carried = self._carried | (self._repeated & (now != self._before))
        self._had = (now != 0).any()
        for key, parameter in list(self.never.items()):
            if parameter.grad is not None:
                del self.never[key]

    def before_step(self) -> None:
        """What the step is about to use."""
        now = self._heads()
        self.carries = self.carries + self._carried
        self.emptied = self.emptied + (self._had & ~(now != 0).any())
        self.norms.append(now.norm())
        self.windows.append((self._batches, self._in_vain))
        self._batches, self._in_vain = 0, torch.zeros_like(self._in_vain)
        self.steps += 1
        for key, parameter in list(self.never.items()):
            if parameter.grad is not None:
                del self.never[key]

    def after_step(self) -> None:
        """What it has used."""
        self._stale = self._heads()

    def facts(self, names: dict[int, str]) -> dict[str, Any]:
        """Plain data.

        Returns:
            steps: seen; norms: of the looked-at part at each; carried: names of parameters whose
            gradient held that of earlier steps at nearly every step; looked: how many were
            looked at; emptied: steps before which a gradient was thrown away since the last
            backward pass; windows: for each step the batches with a backward pass, and how many
            of their gradients were thrown away unused.
        """
        sure = self.carries >= max(3, _SURE * (self.steps - 1))
        pieces = zip([0, *self.ends[:-1]], self.ends, self.chosen, strict=True)
        carried = [p for begin, end, p in pieces if bool(sure[begin:end].any())]
        return {
            "name": type(self.optimizer).__name__,
            "steps": self.steps,
            "norms": [float(norm) for norm in self.norms],
            "carried": [names.get(id(p), "?") for p in carried],
            "looked": len(self.chosen),
            "emptied": int(self.emptied),
            "windows": [[batches, int(in_vain)] for batches, in_vain in self.windows],
        }


class Gradients(Observer):
    """Clearing of gradients, and parameters that get none."""

    name: ClassVar[str] = "gradients"

    def __init__(self) -> None:
        self._ledgers: dict[int, Ledger] = {}
        self._batch = 0
        self._idle = False
        self._calls = Calls()

    def _open(self) -> list[Ledger]:
        return [ledger for ledger in self._ledgers.values() if ledger.open]

    def fetched(self, log: Log, loader: Any, batch: Any, training: bool) -> None:
        """Another batch."""
        self._batch += 1

    @torch.no_grad()
    def before_backward(self, log: Log, tensors: Any) -> None:
        """Look at what is still there."""
        for ledger in self._open():
            ledger.before_backward(self._batch, self._idle)

    @torch.no_grad()
    def after_backward(self, log: Log, tensors: Any) -> None:
        """Look at what has come."""
        self._idle = True
        for ledger in self._open():
            ledger.after_backward()

    @torch.no_grad()
    def before_step(self, log: Log, optimizer: Any) -> None:
        """Look at what is used."""
        self._idle = False
        ledger = self._ledgers.get(id(optimizer))
        if ledger is None:
            ledger = self._ledgers[id(optimizer)] = Ledger(optimizer)
        if not ledger.open:
            return
        ledger.before_step()
        if ledger.steps == _CALLS_FROM and ledger.never:
            self._calls.begin(ledger.never)
        elif ledger.steps >= _CALLS_TO:
            self._calls.end()

    @torch.no_grad()
    def after_step(self, log: Log, optimizer: Any) -> None:
        """Look at what was used."""
        ledger = self._ledgers.get(id(optimizer))
        if ledger is not None and ledger.open:
            ledger.after_step()

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """All of it as plain data."""
        self._calls.end()
        names = _names(conductor)
        found = []
        for ledger in self._ledgers.values():
            facts = ledger.facts(names)
            facts["subject"] = log.subject(ledger.optimizer, "optimizer")
            facts["without"] = self._calls.without(ledger, names)
            found.append(facts)
        return {"optimizers": found, "scaler": conductor.own_scaler}


class Calls:
    """Where the modules are called whose parameters never had a gradient so far."""

    def __init__(self) -> None:
        self._never: dict[int, torch.Tensor] = {}
        self._handle: Any = None
        self._seen: dict[int, tuple[torch.nn.Module, tuple[str, int, str]]] = {}

    def begin(self, never: dict[int, torch.Tensor]) -> None:
        """See module calls until `end`; compiled code would be compiled anew, so not there."""
        if self._handle is None and not compiled():
            self._never = dict(never)
            self._handle = torch.nn.modules.module.register_module_forward_pre_hook(self._called)

    def end(self) -> None:
        """See no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        own = [p for p in module._parameters.values() if p is not None and p.requires_grad]
        if not own or not torch.is_grad_enabled() or id(module) in self._seen:
            return
        if all(id(p) in self._never for p in own) and (at := users_frame()) is not None:
            self._seen[id(module)] = module, at

    def without(self, ledger: Ledger, names: dict[int, str]) -> list[dict[str, Any]]:
        """Modules that are called to be trained, and none of whose parameters got a gradient."""
        found = []
        for module, at in self._seen.values():
            own = [p for p in module._parameters.values() if p is not None and p.requires_grad]
            if own and all(id(p) in ledger.never for p in own):
                found.append(
                    {
                        "module": type(module).__name__,
                        "parameters": [names.get(id(p), "?") for p in own],
                        "elements": sum(p.numel() for p in own),
                        "place": asdict(place(*at)),
                    }
                )
        return found


def compiled() -> bool:
    """Whether something runs compiled, so that a new hook would have it compiled anew."""
    import torch._dynamo.utils

    return bool(torch._dynamo.utils.counters["frames"]["total"])


def _names(conductor: Any) -> dict[int, str]:
    roots = conductor.seams.roots if conductor.seams is not None else []
    return {id(p): name for root in roots for name, p in root.module.named_parameters()}
