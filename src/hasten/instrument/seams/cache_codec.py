"""One item as bytes, and back: equal to the bit, and a new object each time.

Only values whose copy is surely equal are taken: tensors, arrays and pictures, in any nesting of
plain containers and scalars. Everything else is `Unstorable`, and its item is fetched as ever.
Reading never imports or calls anything that the bytes name.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from typing import Any

import numpy
import torch

_HEAD = struct.Struct("<II")  # bytes of the pickle, number of buffers
_ALIGN = 64  # of each buffer, as torch aligns its own
_MODES = {"1", "L", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"}
_WRAPPED = ("Image", "Mask")  # tensors of torchvision that have no attributes of their own
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    )
}


class Unstorable(Exception):
    """A value of which no surely equal copy can be made; the message says which."""


class Hole:
    """Stands in a stored item for what the rest of the pipeline will put there."""


HOLE = Hole()


class _Writer(pickle.Pickler):
    """Plain values go into the pickle, large ones into buffers behind it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.buffers: list[memoryview] = []
        self._known: dict[int, tuple[Any, Any]] = {}  # the same object twice stays the same

    def persistent_id(self, value: Any) -> Any:
        if value is HOLE:
            return ("hole",)
        kind = type(value)
        if kind in (int, str, float, bool, bytes, tuple, list, dict, type(None)):
            return None
        if id(value) not in self._known:
            self._known[id(value)] = value, self._describe(value)
        return self._known[id(value)][1]

    def _describe(self, value: Any) -> Any:
        place = len(self._known)
        if isinstance(value, torch.Tensor):
            return ("tensor", place, *self._tensor(value))
        if type(value) is numpy.ndarray and not value.dtype.hasobject:
            return ("array", place, *self._array(value))
        if isinstance(value, numpy.generic) and not value.dtype.hasobject:
            return ("number", place, value.dtype.str, value.tobytes())
        if type(value).__module__ == "PIL.Image":
            return ("picture", place, *self._picture(value))
        raise Unstorable(f"a {type(value).__qualname__}")

    def reducer_override(self, value: Any) -> Any:
        """Whatever gets here is no plain value."""
        raise Unstorable(f"a {type(value).__qualname__}")

    def _buffer(self, data: memoryview) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1

    def _tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        name = _wrapped(value)
        if type(value) is not torch.Tensor and name is None:
            raise Unstorable(f"a {type(value).__qualname__}")
        if value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
            raise Unstorable("a tensor that is not plain memory on the CPU")
        if str(value.dtype) not in _DTYPES or value.is_conj() or value.is_neg():
            raise Unstorable(f"a tensor of {value.dtype}")
        if getattr(value, "__dict__", None):
            raise Unstorable("a tensor with attributes")
        plain = value.as_subclass(torch.Tensor)
        stride = _dense_stride(plain)
        flat = plain.contiguous() if stride is None else plain.as_strided((plain.numel(),), (1,))
        data = flat.reshape(-1).view(torch.uint8).numpy() if flat.numel() else numpy.empty(0, "u1")
        return name, str(value.dtype), tuple(value.shape), stride, self._buffer(data.data)

    def _array(self, value: numpy.ndarray[Any, Any]) -> tuple[Any, ...]:
        if value.dtype.names or value.dtype.kind in "mM":
            raise Unstorable(f"an array of {value.dtype}")
        order = "C" if value.flags.c_contiguous or not value.flags.f_contiguous else "F"
        data = numpy.frombuffer(value.tobytes(order), numpy.uint8).data  # type: ignore[arg-type]
        return value.dtype.str, value.shape, order, value.flags.writeable, self._buffer(data)

    def _picture(self, value: Any) -> tuple[Any, ...]:
        image = sys.modules["PIL.Image"].Image
        if type(value) is not image or value.mode not in _MODES:
            raise Unstorable(f"a picture of {type(value).__qualname__}, mode {value.mode}")
        palette = value.getpalette("RGB") if value.mode == "P" else None
        info = {k: v for k, v in value.info.items() if type(k) is str}
        return value.mode, value.size, palette, info, self._buffer(memoryview(value.tobytes()))


class _Reader(pickle.Unpickler):
    """Rebuilds an item; nothing is looked up by a name that the bytes hold."""

    def __init__(self, head: bytes, buffers: list[memoryview], hole: Any) -> None:
        super().__init__(io.BytesIO(head))
        self._buffers, self._hole = buffers, hole
        self._known: dict[int, Any] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        raise Unstorable(f"{module}.{name} in a stored item")

    def persistent_load(self, pid: Any) -> Any:
        kind, *rest = pid
        if kind == "hole":
            return self._hole
        place, *facts = rest
        if place not in self._known:
            self._known[place] = getattr(self, f"_{kind}")(*facts)
        return self._known[place]

    def _tensor(
        self, name: str | None, dtype: str, shape: Any, stride: Any, buffer: int
    ) -> torch.Tensor:
        # bytearray: a copy of its own that the script may write to
        kind, data = _DTYPES[dtype], bytearray(self._buffers[buffer])
        flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
        value = flat.reshape(shape) if stride is None else flat.as_strided(shape, stride)
        if name is None:
            return value
        wrapped: torch.Tensor = value.as_subclass(
            getattr(sys.modules["torchvision.tv_tensors"], name)
        )
        return wrapped

    def _array(self, dtype: str, shape: Any, order: Any, writeable: bool, buffer: int) -> Any:
        value = numpy.frombuffer(bytearray(self._buffers[buffer]), dtype)
        value = value.reshape(shape, order=order)
        value.flags.writeable = writeable
        return value

    def _number(self, dtype: str, data: bytes) -> Any:
        return numpy.frombuffer(data, dtype)[0]

    def _picture(self, mode: str, size: Any, palette: Any, info: Any, buffer: int) -> Any:
        from PIL import Image

        value = Image.frombytes(mode, size, self._buffers[buffer])
        if palette is not None:
            value.putpalette(palette, "RGB")
        value.info.update(info)
        return value


def _wrapped(value: torch.Tensor) -> str | None:
    module = sys.modules.get("torchvision.tv_tensors")
    for name in _WRAPPED if module is not None else ():
        if type(value) is getattr(module, name):
            return name
    return None


def _dense_stride(value: torch.Tensor) -> tuple[int, ...] | None:
    """The stride of a tensor that fills its memory in another order; None: copy it row by row."""
    if value.is_contiguous() or not value.numel():
        return None
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            raise Unstorable("a tensor with gaps or overlaps in memory")
        expected *= size
    return value.stride()


def encode(value: Any) -> list[bytes | memoryview]:
    """An item as parts to be written one after another.

    Raises:
        Unstorable: no surely equal copy of it can be made.
    """
    file = io.BytesIO()
    writer = _Writer(file)
    try:
        writer.dump(value)
    except (pickle.PicklingError, RecursionError) as error:
        raise Unstorable(str(error)) from error
    head = file.getvalue()
    sizes = struct.pack(f"<{len(writer.buffers)}Q", *(b.nbytes for b in writer.buffers))
    parts: list[bytes | memoryview] = [_HEAD.pack(len(head), len(writer.buffers)) + sizes + head]
    end = len(parts[0])
    for buffer in writer.buffers:
        parts += [bytes(-end % _ALIGN), buffer]
        end += -end % _ALIGN + buffer.nbytes
    return parts


def decode(data: memoryview, hole: Any = HOLE) -> Any:
    """The item that `encode` has made these bytes of, as a new object.

    Args:
        data: the bytes; nothing of the result refers to them.
        hole: what to put where `HOLE` was.

    Raises:
        Unstorable: the bytes name something that no item of ours holds.
    """
    length, count = _HEAD.unpack_from(data)
    sizes = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
    end = _HEAD.size + 8 * count + length
    head, buffers = bytes(data[end - length : end]), []
    for size in sizes:
        end += -end % _ALIGN
        buffers.append(data[end : end + size])
        end += size
    return _Reader(head, buffers, hole).load()
