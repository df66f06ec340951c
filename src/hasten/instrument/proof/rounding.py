"""How a model's gradients move when its arithmetic rounds otherwise: Monte Carlo arithmetic.

Under `Rounding` the result of every operation, forward and backward, is multiplied by 1 + e with
e uniform in plus or minus the unit of a format: what that format's rounding would do, but drawn at
random (Parker, "Monte Carlo Arithmetic", 1997; Vignes, "Discrete stochastic arithmetic", 2004).
The spread of a few such replays is the model's own sensitivity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Attributes:
        unit: largest relative error of one rounding; for the formats that the reference itself is
            in, one unit in the last place, since less can't be represented.
    """

    name: str
    unit: float

    @property
    def reduced(self) -> bool:
        """Whether autocast or TF32 computes in it while the script's tensors are float32."""
        return self.unit > 1e-5


FLOAT64, FLOAT32 = Format("float64", 2.0**-52), Format("float32", 2.0**-23)
TF32, FLOAT16 = Format("TF32", 2.0**-11), Format("float16", 2.0**-11)
BFLOAT16 = Format("bfloat16", 2.0**-8)
_BY_DTYPE = {
    torch.float64: FLOAT64,
    torch.float32: FLOAT32,
    torch.float16: FLOAT16,
    torch.bfloat16: BFLOAT16,
}


def coarsest(dtypes: list[torch.dtype | None], device: str) -> Format:
    """The format with the largest unit among these, and among what matmuls are allowed to use."""
    formats = [_BY_DTYPE[d] for d in dtypes if d in _BY_DTYPE] or [FLOAT32]
    if device == "cuda" and FLOAT32 in formats and _tf32_allowed():
        formats.append(TF32)
    return max(formats, key=lambda f: f.unit)


def _tf32_allowed() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the script has set parts of it differently
        return True


#: Autocast casts the inputs of these.
_PRODUCTS = ("mm", "conv", "linear", "scaled_dot_product", "rnn", "lstm", "gru", "addmv", "einsum")
#: Autocast leaves these in float32, or they keep what they accumulate in float32.
_FULL = ("softmax", "loss", "exp", "log", "pow", "mean", "rsqrt", "var", "entropy")
#: These round nothing.
_MOVES = ("empty", "zeros", "ones", "full", "rand", "clone", "_to_copy", "detach", "view", "lift")


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds every operation at random, by up to the unit of a format.

    Args:
        unit: the format. In a reduced one, only those operations round that autocast runs in it.
        seed: of the roundings; the script's random state isn't touched.
    """

    def __init__(self, unit: Format, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._format = unit
        self._noise = Noise(unit.unit, seed)
        self._kinds: dict[Any, tuple[bool, bool]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation and round what it gives."""
        if func not in self._kinds:
            self._kinds[func] = _kind(func, self._format.reduced)
        product, rounds = self._kinds[func]
        if product and self._format.reduced:
            args = pytree.tree_map(self._noise.moved, args)
        result = func(*args, **(kwargs or {}))
        return pytree.tree_map(self._noise.moved, result) if rounds else result


def _kind(func: Any, reduced: bool) -> tuple[bool, bool]:
    """Whether an operation is a product of matrices, and whether its result is rounded."""
    name = func._schema.name.split("::")[-1]
    fresh = not func._schema.is_mutable and all(r.alias_info is None for r in func._schema.returns)
    product = any(part in name for part in _PRODUCTS)
    exempt = any(part in name for part in _MOVES)
    if reduced and not product:
        # A sum over all is a loss; over some dimensions, the gradient of a bias.
        whole = name == "sum" and func._schema.overload_name == ""
        exempt = exempt or whole or any(part in name for part in _FULL)
    # Statistics that a normalisation saves are kept in float32 and cancel against each other.
    exempt = exempt or ("norm" in name and not name.endswith("backward") and reduced)
    return product, fresh and not exempt


class Noise:
    """Relative noise from generators of its own, one a device."""

    def __init__(self, unit: float, seed: int) -> None:
        self._unit, self._seed = unit, seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def moved(self, value: Any) -> Any:
        """A copy with every element multiplied by 1 + e; anything but floats as it is."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.layout != torch.strided or value.numel() == 0:
            return value
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        noise = torch.empty_like(value, dtype=wide)
        noise.uniform_(-self._unit, self._unit, generator=self._generator(value.device))
        return torch.addcmul(value.to(wide), value.to(wide), noise).to(value.dtype)

    def move(self, tensor: torch.Tensor) -> None:
        """The same in place."""
        with torch.no_grad():
            tensor.copy_(self.moved(tensor))

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            generator = torch.Generator(device).manual_seed(self._seed)
            self._generators[device] = generator
        return self._generators[device]


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
