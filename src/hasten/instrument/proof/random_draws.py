"""Random numbers of a candidate that draws them in a reduced format.

Both modes leave alone what isn't random, and change only how the format rounds what was drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class FloatDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws random numbers in float32 whatever format is asked for, then casts them.

    `randn_like` of a bfloat16 tensor gives other numbers than of a float32 one; with this, both
    get the same and only the rounding differs.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, in float32 when it draws."""
        kwargs = dict(kwargs or {})
        # Attention is a random operation too, but hands its backward more than what it drew.
        if torch.Tag.nondeterministic_seeded not in func.tags or "product" in str(func):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            target = args[0]
            if isinstance(target, torch.Tensor) and target.dtype in _REDUCED:
                drawn = func(target.float(), *args[1:], **kwargs)
                return target.copy_(drawn)
            return func(*args, **kwargs)
        dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor)} | {kwargs.get("dtype")}
        if not dtypes & _REDUCED:
            return func(*args, **kwargs)
        narrow = next(d for d in dtypes if d in _REDUCED)
        if kwargs.get("dtype") in _REDUCED:
            kwargs["dtype"] = torch.float32
        wide = pytree.tree_map(_widened, args)
        result = func(*wide, **kwargs)
        return pytree.tree_map(lambda t: _narrowed(t, narrow), result)


_REDUCED = {torch.bfloat16, torch.float16}


def _widened(value: Any) -> Any:
    reduced = isinstance(value, torch.Tensor) and value.dtype in _REDUCED
    return value.float() if reduced else value


def _narrowed(value: Any, dtype: torch.dtype) -> Any:
    wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return value.to(dtype) if wide else value


class DitheredMasks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds what a dropout mask multiplies by up or down at random, so that its mean is right.

    Where a device makes masks in the format of their input, 1 / 0.9 becomes 1.1094 in bfloat16: one
    rounding that all entries of all masks share, of up to 0.2 %, and that no average over replays
    removes. Six such layers in a row make half a per cent, as a fault would. A mask that is scaled
    by anything else keeps its wrong mean.

    Args:
        seed: of the roundings; the script's random state isn't touched.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._mask: torch.Tensor | None = None  # that was drawn last

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation; the division of a fresh mask by what it keeps in float32."""
        aten, mask = torch.ops.aten, self._mask
        if func is aten.div_.Scalar and mask is not None and args[0] is mask:
            self._mask = None
            return mask.copy_(self._dithered(mask.float() / args[1], mask.dtype))
        result = func(*args, **(kwargs or {}))
        if func is aten.bernoulli_.float and args[0].dtype in _REDUCED:
            self._mask = args[0]
        return result

    def _dithered(self, wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Moved by up to half a unit in the last place, which rounding to nearest makes even."""
        if wide.device not in self._generators:
            self._generators[wide.device] = torch.Generator(wide.device).manual_seed(self._seed)
        noise = torch.empty_like(wide)
        noise.uniform_(-0.5, 0.5, generator=self._generators[wide.device])
        _, exponent = torch.frexp(wide)
        moved = wide + torch.ldexp(noise, exponent - 1) * torch.finfo(dtype).eps
        return torch.where(wide == 0, wide, moved)
