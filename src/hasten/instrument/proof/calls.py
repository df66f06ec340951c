"""One call of a root: recorded while the script makes it, made again when it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from hasten.instrument.proof.state import AutocastState, ModuleState, RandomState
from hasten.instrument.proof.structure import Rebuild, size_of, tensors_in
from hasten.instrument.seams import scaling
from hasten.instrument.seams.placement import move_module
from hasten.instrument.seams.root import Call, Root

Tensors = dict[str, torch.Tensor]


class RecordedCall:
    """What went into one call of a root, and the gradients that came back to its outputs."""

    def __init__(
        self, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any], room: int
    ) -> None:
        self.root = root
        self.room = room  # bytes that the copies may take
        self.gradients: Tensors = {}  # of the outputs, by their path
        self.refused: str | None = None
        self.parameters = {n: p for n, p in root.module.named_parameters() if p.requires_grad}
        self.random = RandomState()
        self.state = ModuleState(root.module)
        self.autocast = AutocastState({"cpu", *(p.device.type for p in self.parameters.values())})
        self.twice = False  # differentiated twice: a gradient penalty
        self._leaves: set[int] = set()
        self._inputs = Rebuild(self._kept)((args, kwargs))
        self._handles: list[Any] = []

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if tensor.is_leaf:
            self._leaves.add(id(copy))
        return copy

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        inputs = list(tensors_in(self._inputs).values())
        return self.state.size + size_of([*inputs, *self.gradients.values()])

    def make(self, run: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the script's call happen, and watch its outputs for gradients."""
        before = _gradient_marks(self.parameters)
        attributes = _side_outputs(self.root.module)
        result = run(*args, **kwargs)
        try:
            self._watch(result, before, attributes)
        except Exception as error:  # objects of the script: anything may happen
            self.refused = f"the output of {self.root.name} can't be watched ({error!r})"
        return result

    def _watch(self, result: Any, marks: list[tuple[int, int]], attributes: dict[str, Any]) -> None:
        if _gradient_marks(self.parameters) != marks:
            self.refused = f"{self.root.name} calls backward itself"
        elif not tensors_in(result):
            self.refused = f"{self.root.name} returns no tensor that can be found"
        if self.refused is not None:
            return
        fresh = _new_side_outputs(self.root.module, attributes)
        for path, tensor in {**_named_outputs(result), **fresh}.items():
            if tensor.requires_grad:
                handle = tensor.register_hook(_Delivery(self, path))  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def close(self) -> None:
        """Take the hooks off the outputs."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def inputs(
        self, move: Any = None
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """Fresh copies of the inputs, and the leaves among them that want a gradient."""
        leaves: list[torch.Tensor] = []

        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.detach().clone()
            if move is not None and copy.is_floating_point():
                move(copy)
            if not tensor.requires_grad:
                return copy
            leaves.append(copy.requires_grad_())
            # The root may change an input in place, which autograd forbids for a leaf.
            return copy if id(tensor) in self._leaves else copy.clone()

        args, kwargs = Rebuild(fresh)(self._inputs)
        return args, kwargs, leaves


@dataclass
class Replay:
    """What one replay of a call gave."""

    outputs: Tensors
    gradients: dict[str, torch.Tensor | None]
    updates: Tensors  # of the buffers: what the call added to them
    buffers: Tensors = field(default_factory=dict)  # before
    drew: bool = False  # random numbers
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)  # of the outputs


def replay(
    call: RecordedCall, move: Any = None, seed: Any = None, mode: Any = None, back: Any = None
) -> Replay:
    """Make a recorded call again under the setting that is in force now.

    Args:
        call: what was recorded.
        move: changes a floating input in place (by one unit in the last place, say).
        seed: called after the random state was put back, to start from another one.
        mode: a context in which call and backward happen.
        back: gives the output gradient to use in place of a recorded one.
    """
    module = call.root.module
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(call.state.in_force())
        stack.enter_context(call.autocast.in_force())
        if call.root.placed:
            move_module(module, call.root.device)  # copies stand in for the buffers
        args, kwargs, leaves = call.inputs(move)
        before = {name: b.detach().clone() for name, b in module.named_buffers()}
        attributes = _side_outputs(module)
        call.random.put()
        if seed is not None:
            seed()
        start = RandomState()
        if mode is not None:
            stack.enter_context(mode)
        result = call.root.run(*args, **kwargs)
        outputs = {**_named_outputs(result), **_new_side_outputs(module, attributes)}
        with torch.autocast(call.root.device, enabled=False):
            gradients = _gradients(call, outputs, leaves, back)
        updates = _updates(before, dict(module.named_buffers()))
        home = call.root.own_device
        return Replay(
            outputs={path: tensor.detach() for path, tensor in outputs.items()},
            gradients={n: None if g is None else g.to(home) for n, g in gradients.items()},
            updates={name: tensor.to(home) for name, tensor in updates.items()},
            buffers={name: tensor.to(home) for name, tensor in before.items()},
            drew=start.moved(),
            dtypes={path: tensor.dtype for path, tensor in outputs.items()},
        )


def _gradients(
    call: RecordedCall, outputs: Tensors, leaves: list[torch.Tensor], back: Any
) -> dict[str, torch.Tensor | None]:
    """Gradients by torch.autograd.grad, so that `.grad` and its hooks stay as they are."""
    names = [*call.parameters, *(f"input {index}" for index in range(len(leaves)))]
    targets = [*call.parameters.values(), *leaves]
    paths = [p for p in call.gradients if p in outputs and outputs[p].requires_grad]
    if not paths:
        return dict.fromkeys(names)
    given = [call.gradients[p].to(outputs[p].dtype) for p in paths]
    given = given if back is None else [back(g) for g in given]
    found = _scaled(call, [outputs[p] for p in paths], targets, given)
    gradients: dict[str, torch.Tensor | None] = dict(zip(names, found, strict=True))
    if call.twice:
        gradients |= _second_gradients(call, gradients, leaves)
    return {name: None if g is None else g.detach() for name, g in gradients.items()}


def _scaled(
    call: RecordedCall,
    outputs: list[torch.Tensor],
    targets: list[torch.Tensor],
    given: list[torch.Tensor],
) -> list[torch.Tensor | None]:
    """Gradients; where the call runs in float16, scaled on the way as in training."""
    scale = scaling.FIRST if call.root.reduced is torch.float16 and not call.twice else 1.0
    while True:
        found: list[torch.Tensor | None] = list(
            torch.autograd.grad(
                outputs,
                targets,
                given if scale == 1.0 else [g * scale for g in given],
                allow_unused=True,
                create_graph=call.twice,
                retain_graph=call.twice or scale > 1.0,
            )
        )
        if scale == 1.0:
            return found
        if scaling.finite([g for g in found if g is not None]):
            return [None if g is None else g / scale for g in found]
        scale /= 2


def _second_gradients(
    call: RecordedCall, first: dict[str, torch.Tensor | None], leaves: list[torch.Tensor]
) -> dict[str, torch.Tensor | None]:
    """Gradients of half the squared norm of the inputs' gradients: what a penalty goes through."""
    inner = [g for n, g in first.items() if n.startswith("input ") and g is not None]
    inner = [g for g in inner if g.requires_grad]
    if not inner:
        return {}
    energy = torch.stack([(g * g).sum() / 2 for g in inner]).sum()
    found = torch.autograd.grad([energy], list(call.parameters.values()), allow_unused=True)
    names = [f"{name} (second order)" for name in call.parameters]
    return dict(zip(names, found, strict=True))


def _updates(before: Tensors, after: Tensors) -> Tensors:
    changes = {}
    for name, tensor in after.items():
        old = before.get(name)
        comparable = old is not None and old.shape == tensor.shape and tensor.dtype != torch.bool
        changes[name] = tensor.detach() - old if comparable and old is not None else tensor.detach()
    return changes


def _named_outputs(result: Any) -> Tensors:
    return {f"output{path}": tensor for path, tensor in tensors_in(result).items()}


def _side_outputs(module: torch.nn.Module) -> dict[str, Any]:
    """Tensors that modules keep as plain attributes: some losses are handed on that way."""
    return {
        f"{name}.{attribute}".lstrip("."): value
        for name, child in module.named_modules()
        for attribute, value in vars(child).items()
        if isinstance(value, torch.Tensor) and not _computed_weight(child, attribute)
    }


def _computed_weight(module: torch.nn.Module, name: str) -> bool:
    """Whether the old weight_norm or spectral_norm computes this attribute before each call."""
    return f"{name}_g" in module._parameters or f"{name}_orig" in module._parameters


def _new_side_outputs(module: torch.nn.Module, before: dict[str, Any]) -> Tensors:
    """Those that the call has set and through which a gradient may come back."""
    return {
        name: value
        for name, value in _side_outputs(module).items()
        if value is not before.get(name) and value.requires_grad and not value.is_leaf
    }


def _gradient_marks(parameters: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """Identity and version of every `.grad`: whether a backward has accumulated into one."""
    return [(id(p.grad), -1 if p.grad is None else p.grad._version) for p in parameters.values()]


def size_before(root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes that recording a call would take before any output gradient has come back."""
    held = [*tensors_in((args, kwargs)).values(), *root.module.buffers()]
    return size_of(held)


class _Delivery:
    """A tensor hook that adds up the gradients which reach one output."""

    def __init__(self, call: RecordedCall, path: str) -> None:
        self._call, self._path = call, path

    def __call__(self, gradient: torch.Tensor) -> None:
        call = self._call
        if call.refused is not None:
            return
        known = call.gradients.get(self._path)
        if known is None and call.size + size_of([gradient]) > call.room:
            call.refused = f"the output of {call.root.name} is too large to record its gradient"
            call.gradients.clear()
            return
        call.twice = call.twice or torch.is_grad_enabled()  # backward with create_graph
        fresh = gradient.detach().clone()
        call.gradients[self._path] = fresh if known is None else known + fresh
