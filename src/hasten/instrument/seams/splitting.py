"""Seam: a root's call made in parts of the batch, whose outputs are put together again.

Each part is recomputed in the backward pass, so that only one part's intermediate results are
alive at a time. What the script does with the outputs, its loss above all, sees the whole batch.
Whatever can't be split that way is called as a whole, and `trouble` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hasten.instrument.seams.recomputing import changed, recomputed, writes

Call = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


class CannotSplit(Exception):
    """Why a call has to be made as a whole, in a user's words."""


class Splitting:
    """Parts in which the calls of one module are made.

    Attributes:
        calls: that were made in parts since the last change.
        trouble: why calls are made as a whole although parts are wanted; empty: they aren't.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._parts = 1
        self.calls = 0
        self.trouble = ""
        self._paths: frozenset[str] | None = None  # of the arguments that are split
        self._examined = False

    @property
    def on(self) -> bool:
        """Whether parts are wanted."""
        return self._parts > 1

    def set(self, parts: int | None) -> None:
        """Make calls in this many parts; None: as the script makes them."""
        self._parts, self.calls = parts or 1, 0

    def call(self, run: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of `run(*args, **kwargs)`."""
        if not self._examined:
            self._examined, self.trouble = True, self._examine(run, args, kwargs)
        if self.trouble:
            return run(*args, **kwargs)
        from hasten.instrument.proof.state import RandomState

        state = RandomState()
        try:
            pieces, sizes = self._pieces((args, kwargs))
            results = [recomputed(self._module, run, *piece) for piece in pieces]
            whole = together(results, sizes)
        except CannotSplit:  # a batch that is unlike the first one: as a whole, this once
            state.put()
            return run(*args, **kwargs)
        self.calls += 1
        return whole

    # --- whether it can be done ----------------------------------------------------------------

    def _examine(self, run: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Try two parts on copies; returns what is wrong with that, or an empty string."""
        from hasten.instrument.proof.state import ModuleState, RandomState

        state = RandomState()
        try:
            refuse_whole_batch(self._module)
            self._paths = batched((args, kwargs))
            pieces, sizes = self._pieces((args, kwargs))
            with ModuleState(self._module).in_force():
                results = [self._trial(run, piece) for piece in (pieces[0], pieces[-1])]
            together(results, [sizes[0], sizes[-1]])
        except CannotSplit as reason:
            return str(reason)
        finally:
            state.put()
        return ""

    def _trial(self, run: Call, piece: Arguments) -> Any:
        from hasten.instrument.proof.structure import Rebuild, tensors_in

        args, kwargs = Rebuild(lambda tensor: tensor.detach().clone())(piece)
        inputs = tensors_in((args, kwargs))
        versions = {path: tensor._version for path, tensor in inputs.items()}
        before = writes(self._module)
        try:
            result = run(*args, **kwargs)
        except Exception as error:  # the script's own code
            raise CannotSplit(f"the model fails on a part of a batch ({_short(error)})") from None
        if any(tensor._version != versions[path] for path, tensor in inputs.items()):
            raise CannotSplit("the model changes its input in place")
        if written := changed(before, writes(self._module)):
            raise CannotSplit(f"each call of the model changes `{written[0]}`")
        # Without its graph, or both pieces' intermediate results would be alive: half a batch's.
        return Rebuild(lambda tensor: tensor.detach())(result)

    # --- taking apart ----------------------------------------------------------------------------

    def _pieces(self, arguments: Arguments) -> tuple[list[Arguments], list[int]]:
        """The arguments of each part, and its samples."""
        from hasten.instrument.proof.structure import Rebuild, tensors_in

        found = tensors_in(arguments)
        paths = self._paths or frozenset()
        lengths = {found[p].shape[0] if p in found and found[p].dim() else 0 for p in paths}
        if len(lengths) != 1 or (length := lengths.pop()) < 2:
            raise CannotSplit("a batch of another form")
        bounds = [round(i * length / self._parts) for i in range(self._parts + 1)]
        spans = [(a, b) for a, b in pairwise(bounds) if b > a]
        split = {id(found[path]) for path in paths}

        def piece(first: int, last: int) -> Arguments:
            def part(tensor: torch.Tensor) -> torch.Tensor:
                return tensor[first:last] if id(tensor) in split else tensor

            pair: Arguments = Rebuild(part)(arguments)
            return pair

        return [piece(*span) for span in spans], [last - first for first, last in spans]


def refuse_whole_batch(module: torch.nn.Module) -> None:
    """Look for what computes with the batch as a whole, or watches its calls.

    Raises:
        CannotSplit: with the first of them.
    """
    if type(module).__name__ in _WRAPPERS:
        raise CannotSplit(f"the model is wrapped in {type(module).__name__}")
    for name, child in module.named_modules():
        if isinstance(child, _BatchNorm) and (child.training or child.running_mean is None):
            raise CannotSplit(f"the batch norm `{name}` computes with the batch as a whole")
        if child._forward_hooks or child._backward_hooks or child._backward_pre_hooks:
            raise CannotSplit(f"a hook on `{name or type(child).__name__}` would see the parts")


def batched(arguments: Arguments) -> frozenset[str]:
    """Paths of the tensors in `arguments` that hold one entry a sample.

    The first tensor tells how many samples there are: its first dimension.

    Raises:
        CannotSplit: there is no such thing.
    """
    from hasten.instrument.proof.structure import plain_in, tensors_in

    tensors = tensors_in(arguments)
    sized = {path: tensor for path, tensor in tensors.items() if tensor.dim() > 0}
    if not sized:
        raise CannotSplit("the model is given no tensor with a batch dimension")
    odd = [p for p, t in tensors.items() if t.layout != torch.strided or t.is_nested]
    if odd:
        raise CannotSplit(f"the argument {odd[0]} is sparse or nested")
    if any(_packed(value) for value in (*arguments[0], *arguments[1].values())):
        raise CannotSplit("the model is given a packed sequence")
    length = next(iter(sized.values())).shape[0]
    if length < 2:
        raise CannotSplit("its batches hold one sample")
    if length in plain_in(arguments).values():
        raise CannotSplit(f"an argument is the number {length}, as the batch is long")
    return frozenset(path for path, tensor in sized.items() if tensor.shape[0] == length)


def _packed(value: Any) -> bool:
    return isinstance(value, torch.nn.utils.rnn.PackedSequence)


def together(results: list[Any], sizes: list[int]) -> Any:
    """The result for the whole batch out of those for its parts.

    Args:
        results: of any nesting, alike for all parts.
        sizes: samples in each part.

    Raises:
        CannotSplit: something in them doesn't hold one entry a sample.
    """
    from hasten.instrument.proof.structure import Rebuild, plain_in, tensors_in

    tensors = [tensors_in(result) for result in results]
    plain = [plain_in(result) for result in results]
    if any(t.keys() != tensors[0].keys() for t in tensors):
        raise CannotSplit("its outputs are not alike for all parts of a batch")
    if any(p != plain[0] for p in plain) or set(sizes) & {*map(_number, plain[0].values())}:
        raise CannotSplit("its outputs hold a number that belongs to the whole batch")
    whole = {
        id(first): _joined(path, [t[path] for t in tensors], sizes)
        for path, first in tensors[0].items()
    }
    return Rebuild(lambda tensor: whole[id(tensor)])(results[0])


def _number(value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _joined(path: str, parts: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    name = f"output{path}"
    if any(part.dim() == 0 for part in parts):
        raise CannotSplit(f"{name} is a single number, computed from the whole batch (a loss?)")
    if any(part.shape[0] != size for part, size in zip(parts, sizes, strict=True)):
        raise CannotSplit(f"{name} has no batch dimension")
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise CannotSplit(f"{name} has another shape for each part of a batch")
    return torch.cat(parts)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:100]}"
