"""What a call depends on besides its inputs: random state, buffers, attributes, flags, autocast.

Nothing is written into the script's own tensors: for a replay, copies stand in the place of the
buffers, and the originals come back afterwards. A graph that the script still carries stays valid.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from hasten.instrument.proof.structure import size_of

#: What nn.Module keeps of its own; all else in an instance belongs to the script.
_INTERNAL = frozenset(vars(torch.nn.Module())) - {"training"} | {"_compiled_call_impl"}
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)
_CONTAINER_ITEMS = 10_000  # larger ones are data, which a call doesn't change


class RandomState:
    """Every random state that a training script commonly draws from."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._devices = [(get(), put) for get, put in _device_states()]
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state() if numpy is not None else None

    def put(self) -> None:
        """Make this the state that the next draw starts from."""
        torch.set_rng_state(self._torch)
        for state, put in self._devices:
            put(state)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)

    def moved(self) -> bool:
        """Whether anything has been drawn since."""
        now = RandomState()
        return bool(
            not torch.equal(now._torch, self._torch)
            or any(
                not torch.equal(a, b)
                for (a, _), (b, _) in zip(now._devices, self._devices, strict=False)
            )
            or now._python != self._python
            or _numpy_key(now._numpy) != _numpy_key(self._numpy)
        )


def _numpy_key(state: Any) -> tuple[Any, ...]:
    return () if state is None else (state[0], state[1].tobytes(), *state[2:])


def reseed(seed: int) -> None:
    """Another random stream everywhere, for replays that look at the spread between streams."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(seed)


def _device_states() -> Iterator[tuple[Any, Any]]:
    """For each accelerator device in use, functions that read and write its random state."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            yield _reader(torch.cuda, index), _writer(torch.cuda, index)
    if getattr(torch, "xpu", None) is not None and torch.xpu.is_available():
        for index in range(torch.xpu.device_count()):
            yield _reader(torch.xpu, index), _writer(torch.xpu, index)
    if torch.backends.mps.is_available():
        yield torch.mps.get_rng_state, torch.mps.set_rng_state


def _reader(module: Any, index: int) -> Any:
    return lambda: module.get_rng_state(index)


def _writer(module: Any, index: int) -> Any:
    return lambda state: module.set_rng_state(state, index)


class AutocastState:
    """The autocast contexts that a call arrived in."""

    def __init__(self, devices: set[str]) -> None:
        self._states = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in sorted(devices)
        ]
        self._cache = torch.is_autocast_cache_enabled()

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The formats in which the script itself computes."""
        return [dtype for _, enabled, dtype in self._states if enabled]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The same contexts again, with a cache that starts and ends empty."""
        torch.clear_autocast_cache()
        with ExitStack() as stack:
            for device, enabled, dtype in self._states:
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=self._cache)
                )
            yield
        torch.clear_autocast_cache()


class ModuleState:
    """Buffers, flags and attributes of a module and its children at the moment of a call."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = list(module.modules())
        self._buffers = [_copies(m._buffers) for m in self._modules]
        self._attributes = [_copies(_own(m)) for m in self._modules]
        self._contents = [_contents(a) for a in self._attributes]
        self._wanted = [(p, p.requires_grad) for p in module.parameters()]

    @property
    def size(self) -> int:
        """Bytes of the copies."""
        holders = [*self._buffers, *self._attributes]
        return size_of([t for h in holders for t in h.values() if isinstance(t, torch.Tensor)])

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Put copies of this state into the modules; afterwards all is as it was before."""
        now = [(dict(m._buffers), _own(m)) for m in self._modules]
        held = [_contents(own) for _, own in now]
        held += [[(c, c.copy()) for c, _ in contents] for contents in self._contents]
        wanted = [(p, p.requires_grad) for p, _ in self._wanted]
        try:
            _want(self._wanted)
            for index, module in enumerate(self._modules):
                _fill(module._buffers, _copies(self._buffers[index]))
                _set_own(module, _copies(self._attributes[index]))
                _set_contents(self._contents[index])
            yield
        finally:
            for module, (buffers, attributes) in zip(self._modules, now, strict=True):
                _fill(module._buffers, buffers)
                _set_own(module, attributes)
            for contents in held:
                _set_contents(contents)
            _want(wanted)


def _own(module: torch.nn.Module) -> dict[str, Any]:
    """What the script keeps in a module beside parameters, buffers and children."""
    return {name: value for name, value in vars(module).items() if name not in _INTERNAL}


def _copies(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _copy(value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    # A tensor with a history belongs to an earlier graph, through which no gradient goes any more.
    return tensor.detach().clone().requires_grad_(tensor.requires_grad and tensor.is_leaf)


def _contents(attributes: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Plain containers among the attributes with a shallow copy of what is in them."""
    return [
        (value, value.copy())
        for value in attributes.values()
        if type(value) in _CONTAINERS and len(value) <= _CONTAINER_ITEMS
    ]


def _set_contents(contents: list[tuple[Any, Any]]) -> None:
    for container, items in contents:
        container.clear()
        (container.extend if isinstance(container, (list, deque)) else container.update)(items)


def _fill(target: dict[str, Any], values: dict[str, Any]) -> None:
    """Make a dict equal to `values`, writing only where they differ and keeping its order."""
    if list(target.keys()) != list(values.keys()):  # TorchScript's holders have no iterator
        target.clear()
    for name, value in values.items():
        if name not in target or target[name] is not value:
            target[name] = value


def _set_own(module: torch.nn.Module, values: dict[str, Any]) -> None:
    attributes = vars(module)
    for name in [n for n in attributes if n not in _INTERNAL and n not in values]:
        del attributes[name]
    for name, value in values.items():
        if name not in attributes or attributes[name] is not value:
            attributes[name] = value


def _want(flags: list[tuple[torch.nn.Parameter, bool]]) -> None:
    for parameter, wanted in flags:
        if parameter.requires_grad != wanted:
            parameter.requires_grad_(wanted)
