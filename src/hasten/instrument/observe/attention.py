"""Finds attention that a model computes by itself, and times the fused kernel in its place.

By hand: a product of queries and keys, scaled and masked, a softmax over the last dimension, maybe
a dropout, and a product with the values, whatever the functions are called that do it. Nothing is
taken for attention by its looks alone: `scaled_dot_product_attention` has to give the same numbers
for the recorded inputs. Where the model uses the weights for anything else, it is left alone.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hasten.diagnosis import Place
from hasten.instrument.observe.functions import Known, Watcher, alike, here, name_of, tensors
from hasten.instrument.observe.instead import Instead
from hasten.instrument.observe.products import Product, product

_PRODUCTS = ("matmul", "bmm", "einsum")
#: What scales, masks, casts or shapes scores.
_CASTING = ("float", "to", "type_as", "type", "bfloat16", "half", "contiguous", "view", "reshape")
_SCALING = ("add", "sub", "mul", "div", "truediv", "true_divide")
_BETWEEN = {*_CASTING, *_SCALING, "masked_fill", "where", "setitem", "unsqueeze", "squeeze"}
_ADDING = ("add", "sub", "where")
_AFTER = {*_CASTING, "dropout"}
_HERE = object()  # stands for the scores or weights among the arguments of a step
_FAR = -1e4  # a score so much lower has no weight
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass
class Step:
    """One function, with `_HERE` in the place of what the steps before have made."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, made: Any, leaves: dict[int, torch.Tensor], drop: bool = True) -> Any:
        """Do it, with leaves in the place of the recorded tensors."""
        if self.name == "dropout" and not drop:
            return made
        args = [made if a is _HERE else leaves.get(id(a), a) for a in self.args]
        kwargs = {n: leaves.get(id(a), a) for n, a in self.kwargs.items()}
        result = self.function(*args, **kwargs)
        return made if result is None else result


@dataclass(eq=False)
class Chain:
    """Attention by hand, or what may become that.

    Attributes:
        at, library: the line, the user's or a library's.
        scores: how they are made from queries and keys.
        shape: of the scores.
        steps: from the scores on; the last is the product with the values.
        tip: what the last step has made.
        softmax: the index of that step; -1: not yet.
        used: for something else as well.
        values: how the product with the values is made; None: not yet.
        result_shape: of that.
        form: what the fused kernel is given for it.
    """

    at: Place | None
    library: str
    scores: Product
    shape: tuple[int, ...]
    steps: list[Step]
    tip: weakref.ref[torch.Tensor]
    softmax: int = -1
    used: bool = False
    values: Product | None = None
    result_shape: tuple[int, ...] = ()
    form: _Fused | None = None

    @property
    def key(self) -> Any:
        """The same for attention of the same shapes at the same line."""
        given = tensors([(step.args, step.kwargs) for step in self.steps])
        shapes = tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in given)
        return self.at, self.library, tuple(step.name for step in self.steps), shapes

    def facts(self) -> dict[str, Any]:
        """How the kernel is to be called: "shape" of the scores, "dropout", "causal", "mask"."""
        form = self.form
        assert form is not None
        more = {"causal": form.causal, "mask": form.bias is not None}
        return {"shape": list(self.shape), "dropout": self.dropout, **more}

    def by_hand(self, leaves: dict[int, torch.Tensor], drop: bool = True) -> torch.Tensor:
        """As the model has it."""
        made: Any = None
        for step in self.steps:
            made = step.run(made, leaves, drop)
        return made  # type: ignore[no-any-return]

    def logits(self, scores: torch.Tensor) -> torch.Tensor:
        """What the softmax would get for these scores."""
        made: Any = scores
        for step in self.steps[1 : self.softmax]:
            made = step.run(made, {})
        return made  # type: ignore[no-any-return]

    def goes_on(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a function can be its next step."""
        tip = self.tip()
        given = tip is not None and any(a is tip for a in args)
        if not given or self.values is not None or any(v is tip for v in kwargs.values()):
            return False
        if self.softmax < 0:
            return name in _BETWEEN or (name == "softmax" and _over_last(tip, args, kwargs))
        if name in _PRODUCTS:
            weighted = product(name, args)
            return weighted is not None and args[weighted.first] is tip and not kwargs
        return name in _AFTER

    @property
    def dropout(self) -> float:
        """Of the weights."""
        for step in self.steps:
            if step.name == "dropout":
                given = inspect.signature(F.dropout).bind(*step.args, **step.kwargs)
                given.apply_defaults()
                return float(given.arguments["p"]) if given.arguments["training"] else 0.0
        return 0.0


class Attention(Watcher):
    """Every attention by hand in one call of a model.

    Attributes:
        chains: what is complete and used for nothing else, with how often it is there.
    """

    def __init__(self) -> None:
        self._known: Known[Chain] = Known()
        self._found: list[Chain] = []

    @property
    def chains(self) -> list[tuple[Chain, int]]:
        """Alike ones once, and how many of them there are."""
        kept: dict[Any, tuple[Chain, int]] = {}
        for chain in self._found:
            if not chain.used:
                first, count = kept.get(chain.key, (chain, 0))
                kept[chain.key] = first, count + 1
        return list(kept.values())

    def called(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """It begins a chain, goes on with one, or uses one for something else."""
        name = name_of(function)
        if name == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)):
            args = args[0], *args[1]
        known = {id(c): c for t in tensors(args, kwargs) if (c := self._known.get(t)) is not None}
        if not known:
            self._begin(Step(name, function, args, kwargs), result)
        elif name == "setitem" or tensors(result):  # nothing else than a size or type otherwise
            for chain in known.values():
                if len(known) > 1 or not chain.goes_on(name, args, kwargs):
                    chain.used = True
                else:
                    self._go_on(chain, Step(name, function, args, kwargs), result)

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        """Weights that leave the model are used for something."""
        for tensor in tensors:
            if (chain := self._known.get(tensor)) is not None:
                chain.used = True

    def _begin(self, step: Step, result: Any) -> None:
        scores = product(step.name, step.args) if step.name in _PRODUCTS else None
        if scores is None or step.kwargs or not scores.plain:
            return
        if isinstance(result, torch.Tensor):
            chain = Chain(*here(), scores, tuple(result.shape), [step], weakref.ref(result))
            self._known.put(result, chain)

    def _go_on(self, chain: Chain, step: Step, result: Any) -> None:
        tip = chain.tip()
        shown = tuple(_HERE if a is tip else a for a in step.args)
        chain.steps.append(Step(step.name, step.function, shown, step.kwargs))
        if step.name in _PRODUCTS:
            chain.values = product(step.name, step.args)
            chain.result_shape = tuple(result.shape)
            self._found.append(chain)
            return
        if step.name == "softmax":
            chain.softmax = len(chain.steps) - 1
        if isinstance(result, torch.Tensor):
            self._known.put(result, chain)
            chain.tip = weakref.ref(result)


def _over_last(tensor: Any, args: Any, kwargs: Any) -> bool:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return dim in (-1, tensor.dim() - 1)


def replaced(chain: Chain) -> Callable[[], Instead] | None:
    """Makes both ways of it; None: the fused kernel doesn't give the same numbers."""
    form = chain.form = _Fused.of(chain)
    if form is None:
        return None

    def make() -> Instead:
        leaves = {id(t): alike(t) for t in tensors([(s.args, s.kwargs) for s in chain.steps])}
        bias = alike(form.bias) if form.bias is not None else None
        given = (*leaves.values(), *([bias] if bias is not None else []))
        return Instead(
            lambda: chain.by_hand(leaves),
            lambda: form.run(chain, leaves, bias, chain.dropout),
            given,
        )

    with torch.no_grad():
        right, found = chain.by_hand({}, drop=False), form.run(chain, {}, form.bias, 0.0)
    apart = float((right.float() - found.float()).abs().max())
    near = _CLOSE.get(right.dtype, 0.0) * max(1e-6, float(right.float().abs().max()))
    return make if apart <= near else None  # NaN is not near


@dataclass(frozen=True)
class _Fused:
    """The arguments of the fused kernel besides queries, keys and values.

    Attributes:
        bias: what is added to scores, or which of them count; None: nothing, or only a triangle.
    """

    scale: float
    causal: bool
    bias: torch.Tensor | None

    @staticmethod
    def of(chain: Chain) -> _Fused | None:
        """From what the model does with scores of zero and of one."""
        query, _ = chain.scores.operands(chain.steps[0].args, {})
        shape, kind = chain.shape, query.dtype
        with torch.no_grad():
            zero = torch.zeros(shape, dtype=kind, device=query.device)
            low, high = chain.logits(zero.clone()).float(), chain.logits(zero + 1).float()
        counts = low > _FAR
        if not bool(counts.any()):
            return None
        scale = float((high - low)[counts].median())
        bias = _small(low.reshape(shape))
        between = [step.args for step in chain.steps[1 : chain.softmax] if step.name in _ADDING]
        if any(t.requires_grad for t in tensors(between)):  # a learned bias
            return _Fused(scale, False, bias.to(kind).requires_grad_())
        if bool((low[counts] == 0).all()):
            mask = bias.gt(_FAR)
            if bool(mask.all()):
                return _Fused(scale, False, None)
            causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
            if mask.numel() == causal.numel() and torch.equal(mask.reshape(causal.shape), causal):
                return _Fused(scale, True, None)
            bias = mask
        else:
            bias = bias.to(kind)
        return _Fused(scale, False, bias)

    def run(
        self,
        chain: Chain,
        leaves: dict[int, torch.Tensor],
        bias: torch.Tensor | None,
        dropout: float,
    ) -> torch.Tensor:
        """Attention by the kernel, in the shape that the model has it in."""
        assert chain.values is not None
        query, key = chain.scores.operands(chain.steps[0].args, leaves)
        value = chain.values.value(chain.steps[-1].args, leaves)
        if value.shape[:-2] != query.shape[:-2]:
            value = value.reshape(*query.shape[:-2], *value.shape[-2:])
        flat = query.dim() == 3  # the kernels want four dimensions
        if flat:
            query, key, value = (t.unsqueeze(1) for t in (query, key, value))
            bias = bias.unsqueeze(1) if bias is not None else None  # scores have three, too
        result = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=self.causal,
            scale=self.scale,
        )
        # The order of the batch's dimensions may differ where the script has reshaped its weights.
        back = chain.values.back
        common = [0] * len(back)
        for at, origin in enumerate(back):
            common[origin] = chain.result_shape[at]
        return result.reshape(common).permute(back)


def _small(bias: torch.Tensor) -> torch.Tensor:
    """Without what only repeats itself along leading dimensions."""
    for dim in range(bias.dim() - 2):
        first = bias.narrow(dim, 0, 1)
        if bool((bias == first).all()):
            bias = first
    return bias.contiguous()
