"""How a model's gradients move when its arithmetic rounds otherwise: Monte Carlo arithmetic.

Under `Rounding` the result of every operation, forward and backward, is multiplied by 1 + e with
e uniform in plus or minus the unit of a format: what that format's rounding would do, but drawn at
random (Parker, "Monte Carlo Arithmetic", 1997; Vignes, "Discrete stochastic arithmetic", 2004).
The spread of a few such replays is the model's own sensitivity.

A sum of n terms does not round once: each of its n additions does. In whatever order it runs, what
comes out is the exact sum of terms that were each moved by at most about sqrt(n) units (Higham and
Mary 2019: the backward error of summation, with probability), and neighbours are moved alike, since
they share the additions that follow. So in a full format, whose sums err by that, the inputs of
sums and products are moved by up to sqrt(n) units, each alone, and the result once more, which
moves all of them together. A normalisation is taken apart into the sums it is made of: its backward
subtracts a mean, and if that mean is off by a rounding, so is every entry, in the same direction.
This is what makes the gradient of a bias before a batch norm visible: it is a sum that cancels to
nothing, of which only the errors of that mean remain. In a reduced format sums and statistics are
kept in float32, and one rounding of inputs and result is all there is.

Which operations run in a reduced format depends on the device. Autocast runs softmax, exp, log,
pow and the like in float32 on CUDA and leaves them alone on the CPU, where they run in whatever
format comes in (PyTorch's documentation, "Autocast Op Reference": "CUDA Ops that can autocast to
float32" and "CPU Ops that can autocast to float32"; the lists themselves are AT_FORALL_FP32 in
aten/src/ATen/autocast_mode.h, and KERNEL_CPU(..., fp32) in autocast_mode.cpp; what a torch holds
is told by `torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    Attributes:
        unit: largest relative error of one rounding; for the formats that the reference itself is
            in, one unit in the last place, since less can't be represented.
        device: type of the device that computes in it, which decides what autocast keeps in
            float32.
    """

    name: str
    unit: float
    device: str = ""

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
    if device == "cpu" and FLOAT32 in formats and _bf16_products():
        formats.append(BFLOAT16)
    return replace(max(formats, key=lambda f: f.unit), device=device)


def _bf16_products() -> bool:
    """Whether oneDNN may compute products of float32 in bfloat16."""
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    if read is not None:
        return "bf16" in (read("mkldnn", "matmul"), read("mkldnn", "conv"))
    return torch.get_float32_matmul_precision() == "medium"


def _tf32_allowed() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the script has set parts of it differently
        return True


#: Autocast casts the inputs of these.
_PRODUCTS = ("mm", "conv", "linear", "scaled_dot_product", "rnn", "lstm", "gru", "addmv", "einsum")
#: Autocast runs these in float32, or they keep what they accumulate in float32.
_FULL = ("softmax", "loss", "exp", "log", "pow", "mean", "rsqrt", "var", "entropy")
#: The same on the CPU: losses, and what LAPACK, MKL and the like have in float32 only.
_FULL_CPU = ("loss", "entropy", "kl_div", "prod", "cdist", "grid_sampler", "fft", "linalg")
#: These round nothing.
_MOVES = ("empty", "zeros", "ones", "full", "rand", "clone", "_to_copy", "detach", "view", "lift")


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds every operation at random, by up to the unit of a format.

    Args:
        unit: the format. In a reduced one, only those operations round that autocast runs in it;
            in a full one, sums and products also round as often as they add.
        seed: of the roundings; the script's random state isn't touched.
    """

    def __init__(self, unit: Format, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._format = unit
        self._noise = Noise(unit.unit, seed)
        self._kinds: dict[Any, tuple[bool, bool]] = {}
        self._cpu = unit.reduced and unit.device == "cpu"
        self._losses = _Losses()

    def __enter__(self) -> Any:
        """Round from here on."""
        if self._cpu:
            self._losses.__enter__()  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Round no more."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._cpu:
            self._losses.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation and round what it gives."""
        if func not in self._kinds:
            self._kinds[func] = _kind(func, self._format.reduced, self._cpu)
        product, rounds = self._kinds[func]
        if self._losses.depth:
            return func(*args, **(kwargs or {}))
        if rounds and not self._format.reduced:
            return self._added_up(func, args, kwargs or {})
        if product and self._format.reduced:
            args = pytree.tree_map(self._noise.moved, args)
        result = func(*args, **(kwargs or {}))
        return pytree.tree_map(self._noise.moved, result) if rounds else result

    def _added_up(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation with its terms and its result moved as the additions in it round."""
        name = _name(func)
        if (parts := _parts(func)) is not None:
            with self:
                return parts(*args, **kwargs)
        if name == "convolution_backward":  # three sums, each with a length of its own
            return self._convolution_backward(func, args, kwargs)
        length, result = _length(name, args), None
        if length is None:  # what it adds up shows in the size of what comes out
            result = func(*args, **kwargs)
            length = _shrunk(args, result) if _repeatable(func) else 1.0
        if length > 1:
            result = func(*self._moved_terms(name, args, length), **kwargs)
        elif result is None:
            result = func(*args, **kwargs)
        return self._moved_result(result, length)

    def _moved_result(self, result: Any, length: float) -> Any:
        times = math.sqrt(max(1.0, length))
        return pytree.tree_map(lambda t: self._noise.moved(t, times), result)

    def _convolution_backward(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        gradient, weight, mask = args[0], args[2], args[-1]
        pixels = gradient.numel() / gradient.shape[1]
        lengths = (weight.numel() / min(weight.shape[:2]), pixels, pixels)
        found: list[Any] = [None, None, None]
        for index, (wanted, length) in enumerate(zip(mask, lengths, strict=True)):
            if wanted:
                only = [i == index for i in range(3)]
                moved = self._moved_terms("convolution", args[:3], length)
                sums = func(*moved, *args[3:-1], only, **kwargs)[index]
                found[index] = self._moved_result(sums, length)
        return tuple(found)

    def _moved_terms(self, name: str, args: tuple[Any, ...], length: float) -> tuple[Any, ...]:
        """Arguments with the terms of a sum moved: all of a product's, otherwise the largest.

        The smaller ones of a normalisation are its running statistics, which it writes to.
        """
        most = 0 if any(part in name for part in _PRODUCTS) else _largest(args)
        times = math.sqrt(length)

        def move(value: Any) -> Any:
            is_term = isinstance(value, torch.Tensor) and value.numel() >= most
            return self._noise.moved(value, times) if is_term else value

        # What an attention hands its backward besides: its own result, and logarithms of sums.
        last = 4 if "scaled_dot_product" in name else len(args)
        return (*pytree.tree_map(move, args[:last]), *args[last:])


class _Losses(TorchFunctionMode):
    """How deep the running code is in losses of torch, which the CPU's autocast runs in float32.

    Below, cross entropy is a softmax like any other.
    """

    depth = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function, and know while it runs whether it is a loss."""
        name = getattr(func, "__name__", "")
        inside = any(part in name for part in ("loss", "entropy", "kl_div"))
        self.depth += inside
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.depth -= inside


def _kind(func: Any, reduced: bool, cpu: bool = False) -> tuple[bool, bool]:
    """Whether an operation is a product of matrices, and whether its result is rounded."""
    name = _name(func)
    fresh = not func._schema.is_mutable and all(r.alias_info is None for r in func._schema.returns)
    product = any(part in name for part in _PRODUCTS)
    exempt = any(part in name for part in _MOVES)
    if reduced and not product:
        # A sum over all is a loss; over some dimensions, the gradient of a bias.
        whole = name in ("sum", "mean") and func._schema.overload_name == ""
        exempt = exempt or whole or any(part in name for part in (_FULL_CPU if cpu else _FULL))
    # Statistics that a normalisation saves are kept in float32 and cancel against each other.
    exempt = exempt or ("norm" in name and not name.endswith("backward") and reduced)
    return product, fresh and not exempt


def _parts(func: Any) -> Any:
    """The operations that one which subtracts a mean is made of, as a compiler has it, or None."""
    name = _name(func)
    if "norm" not in name and not ("softmax" in name and "backward" in name):
        return None
    from torch._decomp import decomposition_table

    return decomposition_table.get(func)


def _name(func: Any) -> str:
    return str(func._schema.name.split("::")[-1])


def _length(name: str, args: tuple[Any, ...]) -> float | None:
    """How many terms each sum has in a product or a normalisation; None for anything else."""
    matrices = [a for a in args if isinstance(a, torch.Tensor) and a.dim() > 1]
    if "scaled_dot_product" in name and len(matrices) > 2:
        return float(max(matrices[1].shape[-1], matrices[1].shape[-2]))
    if "conv" in name and len(matrices) > 1:
        return float(matrices[1].numel() / min(matrices[1].shape[:2]))
    if any(part in name for part in _PRODUCTS) and matrices:
        return float(matrices[-2 if len(matrices) > 1 else 0].shape[-1])
    if "norm" in name and matrices:  # the statistics or weights among its arguments are as many
        sizes = [t.numel() for t in pytree.tree_leaves(args) if _is_float(t) and t.numel()]
        return float(max(sizes) / min(sizes))
    return None


def _repeatable(func: Any) -> bool:
    """Whether an operation may be run twice: it draws nothing, and its schema tells all."""
    return func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags


def _shrunk(args: tuple[Any, ...], result: Any) -> float:
    """How many entries go into one that comes out: the length of the sums in a reduction."""
    sizes = [t.numel() for t in pytree.tree_leaves(result) if _is_float(t) and t.numel()]
    return _largest(args) / min(sizes) if sizes else 1.0


def _largest(args: tuple[Any, ...]) -> int:
    return max((t.numel() for t in pytree.tree_leaves(args) if _is_float(t)), default=0)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Noise:
    """Relative noise from generators of its own, one a device."""

    def __init__(self, unit: float, seed: int) -> None:
        self._unit, self._seed = unit, seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def moved(self, value: Any, times: float = 1.0) -> Any:
        """A copy with every element multiplied by 1 + e; anything but floats as it is.

        Args:
            value: anything.
            times: units that e may be.
        """
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.layout != torch.strided or value.numel() == 0:
            return value
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        noise = torch.empty_like(value, dtype=wide)
        noise.uniform_(
            -times * self._unit, times * self._unit, generator=self._generator(value.device)
        )
        # What a mask has made infinite stays so: infinity less a part of it is not a number.
        changes = noise.mul_(value).nan_to_num_(0.0, 0.0, 0.0)
        return changes.add_(value).to(value.dtype)

    def move(self, tensor: torch.Tensor) -> None:
        """The same in place."""
        with torch.no_grad():
            tensor.copy_(self.moved(tensor))

    def dithered(self, value: torch.Tensor) -> torch.Tensor:
        """A copy with entries multiplied by factors from 0.7 to 1.4, evenly in their logarithm.

        That is one power of two: every entry meets every mantissa as often as any other, so that
        what a format rounds away is on average the same part of each, however they cancel.
        """
        if value.layout != torch.strided:
            return value
        factor = torch.empty_like(value, dtype=torch.float32)
        factor.uniform_(-0.5, 0.5, generator=self._generator(value.device))
        return (value * factor.exp2()).to(value.dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            generator = torch.Generator(device).manual_seed(self._seed)
            self._generators[device] = generator
        return self._generators[device]
