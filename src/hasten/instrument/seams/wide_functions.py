"""Seam: functions that lose digits stay in float32 while a root runs under autocast.

Losses, softmax, logarithms, powers and sums. On CUDA autocast does so for most of them; on the CPU
it leaves them in whatever format comes in (PyTorch, "Autocast Op Reference").
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_REDUCED = (torch.bfloat16, torch.float16)
#: CUDA's list, and what it leaves out of the same kind.
_LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss
smooth_l1_loss soft_margin_loss triplet_margin_loss
"""
_OTHERS = """
acos asin cdist cosh cosine_similarity cumprod cumsum dist erfinv exp expm1 group_norm layer_norm
log log10 log1p log2 log_sigmoid log_softmax logsigmoid logsumexp mean norm normalize pdist pow
prod rdiv reciprocal renorm rms_norm rpow rsqrt rtruediv sinh softmax softmin softplus square std
sum tan var vector_norm
"""
_NAMES = frozenset((_LOSSES + _OTHERS).split())


class WideFunctions(TorchFunctionMode):
    """Runs them in float32, also where their arguments come in a reduced format.

    Args:
        device: type of the device whose autocast would cast them down again.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").removeprefix("__").removesuffix("__")
        if name not in _NAMES or kwargs.get("out") is not None or not _reduced((args, kwargs)):
            return func(*args, **kwargs)
        with torch.autocast(self._device, enabled=False):
            return func(*pytree.tree_map(_wide, args), **pytree.tree_map(_wide, kwargs))


def _reduced(values: Any) -> bool:
    leaves = pytree.tree_leaves(values)
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype in _REDUCED for leaf in leaves)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _REDUCED else value
