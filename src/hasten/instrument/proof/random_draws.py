"""Random numbers of a candidate that draws them in a reduced format, or in another memory order.

Both modes leave alone what isn't random, and change only how it is drawn or rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws the random numbers that the reference draws, then gives them the candidate's form.

    `randn_like` of a bfloat16 tensor gives other numbers than of a float32 one, and a dropout mask
    is filled in memory order, so that images in channels_last get another one than images in rows.
    With this both sides get the same, and what is left is what the candidate computes.

    Args:
        wide: draw in float32 where a reduced format is asked for, and cast what was drawn.
        rows: draw in rows whatever the strides, and lay out what was drawn.
    """

    def __init__(self, wide: bool = True, rows: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wide, self._rows = wide, rows

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, in float32 and in rows when it draws."""
        kwargs = dict(kwargs or {})
        # Attention is a random operation too, but hands its backward more than what it drew.
        if torch.Tag.nondeterministic_seeded not in func.tags or "product" in str(func):
            return func(*args, **kwargs)
        given = [a for a in args if isinstance(a, torch.Tensor)]
        dtypes = {a.dtype for a in given} | {kwargs.get("dtype")}
        narrow = next((d for d in dtypes if d in _REDUCED), None) if self._wide else None
        strides = next((_layout(a) for a in given), None) if self._rows else None
        if narrow is None and strides is None:
            return func(*args, **kwargs)
        if kwargs.get("dtype") in _REDUCED and narrow is not None:
            kwargs["dtype"] = torch.float32
        drawn = func(*pytree.tree_map(self._plain, args), **kwargs)
        if func._schema.is_mutable:
            return given[0].copy_(drawn)
        return pytree.tree_map(lambda t: _formed(t, narrow, strides), drawn)

    def _plain(self, value: Any) -> Any:
        """An operand as the reference has it."""
        if not isinstance(value, torch.Tensor):
            return value
        if self._wide and value.dtype in _REDUCED:
            value = value.float()
        return value.contiguous() if self._rows else value


_REDUCED = {torch.bfloat16, torch.float16}


def _layout(tensor: torch.Tensor) -> torch.memory_format | None:
    """The memory format of images that aren't in rows."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = formats.get(tensor.dim())
    if form is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=form):
        return None
    return form


def _formed(value: Any, narrow: torch.dtype | None, layout: torch.memory_format | None) -> Any:
    """What was drawn, in the format and the strides that were asked for."""
    if not isinstance(value, torch.Tensor):
        return value
    if narrow is not None and value.dtype == torch.float32:
        value = value.to(narrow)
    return value if layout is None else value.contiguous(memory_format=layout)


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
