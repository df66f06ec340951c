"""Has the dataset changed since its workers were started? When in doubt: yes.

Workers hold a copy of the dataset. torch makes new ones for every epoch, so a script that sets
`dataset.epoch` between epochs is heard; workers that outlive the epoch wouldn't hear it. A
fingerprint covers the dataset, the collate function and the worker's initialisation: attributes,
what their code reads from globals and closures, all within bounds. Whatever is too large or
cannot be looked into has no fingerprint, and then the pool is started anew.
"""

from __future__ import annotations

import dis
import enum
import functools
import itertools
import logging
import marshal
import os
import random
import types
import zlib
from collections.abc import Iterable
from typing import Any

import numpy
import torch

#: Equal fingerprints of one dataset at two times mean: observably unchanged.
Fingerprint = int

_OBJECTS = 20_000  # visited one by one; plain lists of any length count as one
_BYTES = 256 * 2**20  # read of arrays and tensors
_SCALARS = (str, int, float, bool, complex, bytes, type(None))
_BY_NAME = (torch.dtype, torch.device, numpy.dtype, os.PathLike, enum.Enum, range, slice)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_BY_IDENTITY = (types.ModuleType, logging.Logger)
_LIBRARIES = {"torch", "torchvision", "torchaudio", "numpy", "PIL", "builtins", "collections",
              "typing", "functools", "operator", "random", "abc", "hasten"}  # fmt: skip


class Unknown(Exception):
    """Something whose state cannot be told; the message says what."""


class _Plain:
    """As large as an object that keeps its state in attributes; one with more has it in C."""


class _Walk:
    """One walk over everything that workers get a copy of."""

    def __init__(self) -> None:
        self._hash = 0
        self._objects = 0
        self._bytes = 0
        self._seen: dict[int, Any] = {}  # keeps them alive, so that no id is used twice

    def result(self) -> Fingerprint:
        return self._hash

    def _add(self, data: bytes) -> None:
        self._hash = hash((self._hash, data))

    def visit(self, value: Any, name: str) -> None:
        """Take `value`, found under `name`, into account."""
        if isinstance(value, _SCALARS):
            self._add(f"{type(value).__name__}{value!r}".encode())
            return
        if id(value) in self._seen:
            self._add(b"again")
            return
        self._seen[id(value)] = value
        self._objects += 1
        if self._objects > _OBJECTS:
            raise Unknown(f"more than {_OBJECTS} objects, at {name}")
        self._add(type(value).__qualname__.encode())
        if not self._whole(value, name):
            self._parts(value, name)

    def _whole(self, value: Any, name: str) -> bool:
        """Values that are read at once."""
        if isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            self._array(value, name)
        elif isinstance(value, _BY_NAME):
            self._add(repr(value).encode())
        elif isinstance(value, _BY_IDENTITY) or _shared(value):
            self._add(str(id(value)).encode())
        elif isinstance(value, torch.Generator):
            self._add(value.get_state().numpy().tobytes())
        elif isinstance(value, random.Random):
            self._add(repr(value.getstate()).encode())
        elif isinstance(value, numpy.random.Generator):
            self._add(repr(value.bit_generator.state).encode())
        elif isinstance(value, numpy.random.RandomState):
            self._add(repr(value.get_state(legacy=False)).encode())
        elif isinstance(value, _CONTAINERS):
            return self._plain(value, name)
        else:
            return False
        return True

    def _plain(self, value: Any, name: str) -> bool:
        """Containers of nothing but plain values, of any length, at the speed of C."""
        if not _all_plain([value]):  # marshal would read arrays, too, of any size
            return False
        data = marshal.dumps(value, 2)  # version 2: no reference flags, which vary
        self._charge(len(data), name)
        self._add(data)
        return True

    def _tensor(self, value: torch.Tensor, name: str) -> None:
        self._add(f"{value.dtype}{tuple(value.shape)}".encode())
        # What is written to shared memory reaches the workers anyway.
        if value.is_shared():  # type: ignore[no-untyped-call]
            return
        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise Unknown(f"{name} is a tensor on {value.device} or without strides")
        self._charge(value.numel() * value.element_size(), name)
        flat = value.detach().contiguous().reshape(-1)
        if flat.numel():
            self._content(flat.view(torch.uint8).numpy().data)

    def _array(self, value: numpy.ndarray[Any, Any], name: str) -> None:
        self._add(f"{value.dtype}{value.shape}".encode())
        if isinstance(value, numpy.memmap):  # a file: workers read the same one
            self._add(str((value.filename, value.offset, value.mode)).encode())
            return
        self._charge(value.nbytes, name)
        if value.size:
            self._content(numpy.ascontiguousarray(value).data.cast("B"))

    def _content(self, data: memoryview) -> None:
        self._add(b"%d %d" % (zlib.crc32(data), zlib.adler32(data)))

    def _charge(self, size: int, name: str) -> None:
        self._bytes += size
        if self._bytes > _BYTES:
            raise Unknown(f"more than {_BYTES >> 20} MiB in memory, at {name}")

    def _parts(self, value: Any, name: str) -> None:
        if type(value) not in _CONTAINERS and isinstance(value, _CONTAINERS):
            self.visit(getattr(value, "__dict__", None), name)
        if isinstance(value, (dict, types.MappingProxyType)):
            for key, item in value.items():
                self.visit(key, name)
                self.visit(item, f"{name}[{key!r}]")
        elif isinstance(value, (list, tuple, set, frozenset)):
            self._add(b"%d" % len(value))
            for place, item in enumerate(value):
                self.visit(item, f"{name}[{place}]")
        elif isinstance(value, numpy.ndarray):
            self.visit(value.tolist(), name)
        else:
            self._code_or_object(value, name)

    def _code_or_object(self, value: Any, name: str) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__, name)
            self.visit(value.__self__, name)
        elif isinstance(value, (staticmethod, classmethod)):
            self.visit(value.__func__, name)
        elif isinstance(value, property):
            self.visit((value.fget, value.fset), name)
        elif isinstance(value, type):
            self._class(value, name)
        elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
            self.visit((value.func, value.args, value.keywords), name)
        elif isinstance(value, types.BuiltinFunctionType):
            self.visit(value.__self__, name)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.visit(value.__wrapped__, name)  # what it remembers is a function's result
        elif hasattr(value, "__dict__") and type(value).__basicsize__ <= _Plain.__basicsize__:
            self._object(value, name)
        elif hasattr(type(value), "__get__") or (
            callable(value) and _library(type(value).__module__)
        ):  # descriptors and functions written in C
            self._add(str(id(value)).encode())
        else:
            raise Unknown(f"{name} is a {type(value).__qualname__}")

    def _function(self, value: types.FunctionType, name: str) -> None:
        self._add(str(id(value.__code__)).encode())
        if _library(value.__module__):
            return
        cells = [c.cell_contents for c in value.__closure__ or () if _filled(c)]
        self.visit([*cells, value.__defaults__, value.__kwdefaults__], name)
        for word in _words(value.__code__):
            if word in value.__globals__:
                self.visit(value.__globals__[word], f"{name}: {word}")

    def _class(self, value: type, name: str) -> None:
        self._add(str(id(value)).encode())
        if not _library(value.__module__):
            for key, item in list(vars(value).items()):
                if not key.startswith(("__", "_abc_")) or isinstance(item, types.FunctionType):
                    self.visit(item, f"{name}.{key}")

    def _object(self, value: Any, name: str) -> None:
        for cls in type(value).__mro__:
            self.visit(cls, cls.__qualname__)
            if vars(cls).get("__slots__"):
                raise Unknown(f"{name} has slots")
        for key, item in list(vars(value).items()):
            self.visit(item, f"{name}.{key}")


def _words(code: types.CodeType) -> Iterable[str]:
    """The globals that a function reads, those of functions within it included."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _words(constant)


def _all_plain(values: list[Any], depth: int = 6) -> bool:
    """Whether there are only plain values in containers, level by level at the speed of C."""
    kinds = set(map(type, values))
    if not kinds - set(_SCALARS):
        return True
    if not depth or kinds - {*_SCALARS, *_CONTAINERS}:
        return False
    inner = [v for v in values if type(v) not in _SCALARS]
    held = list(itertools.chain.from_iterable(inner))  # of mappings: the keys
    held += itertools.chain.from_iterable(v.values() for v in inner if type(v) is dict)
    return _all_plain(held, depth - 1)


def _shared(value: Any) -> bool:
    """Values that processes share: what is written to them reaches the workers."""
    return type(value).__module__.startswith("multiprocessing")


def _library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not Unknown
    except ValueError:
        return False


def fingerprint(*values: Any) -> tuple[Fingerprint | None, str]:
    """What can be compared later to see whether any of `values` has changed.

    Returns:
        The fingerprint, or None and the reason why there is none.
    """
    walk = _Walk()
    try:
        for value in values:
            walk.visit(value, type(value).__name__)
    except Unknown as unknown:
        return None, str(unknown)
    except Exception as error:  # attributes of the script's objects may do anything
        return None, f"{type(error).__name__}: {error}"
    return walk.result(), ""
