"""Datasets whose items are rows: a batch of them is fetched by one indexing instead of many.

`recognise` reads how a dataset makes an item. torch's TensorDataset is known, and of a class of
the script's the source of `__getitem__`: when it does nothing but take `self.name[index]` of
tensors, arrays and lists of numbers, convert it, and put it into a tuple or a dict, the same
expression with many indices gives the rows of all items. Anything else is left alone, since code
that only seems to do the same for a batch (a condition, a mean, a random number) could not be told
by trying.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

#: Conversions of a tensor that do the same for a row as for many rows.
_CONVERSIONS = {"float", "double", "half", "bfloat16", "long", "int", "short", "bool", "clone"}
_MAKERS = {"from_numpy", "as_tensor", "tensor"}
_LONGEST = 30  # lines of a __getitem__ that is looked at


class NotRows(Exception):
    """Why the items of a dataset can't be fetched at once, in a user's words."""


class Rows:
    """The indices of a batch.

    Raises:
        NotRows: they aren't plain whole numbers from 0 up.
    """

    def __init__(self, indices: Sequence[Any]) -> None:
        if not len(indices) or not all(type(i) is int and i >= 0 for i in indices):
            raise NotRows("an index isn't a whole number from 0 up")
        self.list = list(indices)
        self.array = numpy.array(self.list, dtype=numpy.int64)
        self.tensor = torch.from_numpy(self.array)


# --- what an item is made of ---------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """`self.name[index]`."""

    name: str

    def take(self, dataset: Any, rows: Rows) -> Any:
        """The rows of a tensor, an array or a list of numbers."""
        attributes = getattr(dataset, "__dict__", {})
        if self.name not in attributes or hasattr(type(dataset), self.name):
            raise NotRows(f"self.{self.name} is computed when it is read")
        return take(attributes[self.name], rows, f"self.{self.name}")


def _attribute(dataset: Any, part: Any) -> Any:
    named = getattr(dataset, "__dict__", {})
    return named.get(part.name) if isinstance(part, Column) else None


@dataclass(frozen=True)
class Converted:
    """`part.float()` and the like, or `torch.tensor(part, dtype=...)`."""

    part: Any
    method: str  # of the tensor; empty: a new tensor of it
    dtype: torch.dtype | None = None

    def take(self, dataset: Any, rows: Rows) -> Any:
        """The conversion of all rows."""
        column = _attribute(dataset, self.part)
        if type(column) is list:
            if self.method:
                raise NotRows("its __getitem__ converts what is no tensor")
            return torch.tensor(_numbers(column, rows), dtype=self.dtype)  # by itself: float32
        found = self.part.take(dataset, rows)
        if self.method:
            return getattr(found, self.method)()
        return found if self.dtype is None else found.to(self.dtype)


@dataclass(frozen=True)
class Together:
    """A tuple or list (`names` is None), or a dict."""

    parts: tuple[Any, ...]
    names: tuple[str, ...] | None = None

    def take(self, dataset: Any, rows: Rows) -> Any:
        """What torch's collate function makes of such items."""
        found = [part.take(dataset, rows) for part in self.parts]
        return found if self.names is None else dict(zip(self.names, found, strict=True))


@dataclass(frozen=True)
class Tensors:
    """An item of torch's TensorDataset."""

    def take(self, dataset: Any, rows: Rows) -> Any:
        """The rows of each tensor."""
        return [take(tensor, rows, "a tensor") for tensor in dataset.tensors]


@dataclass(frozen=True)
class Part:
    """An item of a Subset."""

    inner: Any

    def take(self, dataset: Any, rows: Rows) -> Any:
        """The rows that the subset's indices name."""
        chosen = dataset.indices
        return self.inner.take(dataset.dataset, Rows([_whole(chosen[i]) for i in rows.list]))


def _numbers(column: list[Any], rows: Rows) -> list[Any]:
    """Entries of a list of numbers."""
    if len(column) <= rows.array.max():
        raise NotRows("a list has no such row")
    found = [column[i] for i in rows.list]
    if len({type(entry) for entry in found}) > 1 or type(found[0]) not in (int, float, bool):
        raise NotRows("a list holds other things than numbers of one kind")
    return found


def _whole(index: Any) -> Any:
    return index.item() if isinstance(index, (torch.Tensor, numpy.integer)) else index


def take(column: Any, rows: Rows, name: str) -> Any:
    """Rows of a tensor, array or list of numbers, as torch's collate function has them.

    Raises:
        NotRows: it is something else, or too short.
    """
    if not hasattr(column, "__len__") or len(column) <= rows.array.max():
        raise NotRows(f"{name} has no such row")
    if type(column) is torch.Tensor:
        if column.requires_grad or column.layout is not torch.strided or column.is_quantized:
            raise NotRows(f"{name} is not a plain tensor")
        return column.index_select(0, rows.tensor.to(column.device)).contiguous()
    if type(column) is numpy.ndarray and column.dtype.kind in "fiub":
        found = torch.as_tensor(column[rows.array])
        if column.ndim > 1:
            return found
        return found.to(torch.as_tensor([column[rows.list[0]]]).dtype)  # as of a list of scalars
    if type(column) is list:
        return default_collate(_numbers(column, rows))
    raise NotRows(f"{name} is a {type(column).__name__}, not a tensor, array or list")


# --- how a dataset makes an item -----------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How to fetch a batch of this dataset at once.

    Attributes:
        item: what an item is made of.
        methods: `__getitem__` of each class involved, as it was when it was read.
    """

    item: Any
    methods: tuple[Callable[..., Any], ...]

    def batch(self, dataset: Any, indices: Sequence[Any]) -> Any:
        """What collating the items would give.

        Raises:
            NotRows: these can't be fetched at once; nothing has been changed.
        """
        inner = dataset
        for method in self.methods:
            if type(inner).__getitem__ is not method:
                raise NotRows(f"{type(inner).__name__}.__getitem__ was replaced")
            inner = getattr(inner, "dataset", None)
        return self.item.take(dataset, Rows(indices))


def recognise(dataset: Any) -> Recipe:
    """How to fetch batches of a dataset at once.

    Raises:
        NotRows: it can't be done.
    """
    kind = type(dataset)
    if kind is TensorDataset:
        return Recipe(Tensors(), (TensorDataset.__getitem__,))
    if kind is Subset:
        inner = recognise(dataset.dataset)
        return Recipe(Part(inner.item), (Subset.__getitem__, *inner.methods))
    if getattr(dataset, "__getitems__", None):
        raise NotRows(f"{kind.__name__} fetches whole batches by itself")
    if any("__getattribute__" in vars(base) for base in kind.__mro__[:-1]):
        raise NotRows(f"{kind.__name__} computes its attributes")
    method = getattr(kind, "__getitem__", None)
    if not inspect.isfunction(method):
        raise NotRows(f"{kind.__name__} has no __getitem__ in Python")
    item = _read(method)
    if isinstance(item, str):
        raise NotRows(item)
    return Recipe(item, (method,))


@functools.lru_cache(maxsize=64)
def _read(method: Callable[..., Any]) -> Any:
    """What an item is made of, or why it can't be told; read once, as facts are asked for often."""
    try:
        return _item_of(method)
    except NotRows as reason:
        return str(reason)


def _item_of(method: Callable[..., Any]) -> Any:
    try:
        source = textwrap.dedent(inspect.getsource(method))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        raise NotRows("the source of its __getitem__ can't be read") from None
    if not isinstance(definition, ast.FunctionDef) or len(source.splitlines()) > _LONGEST:
        raise NotRows("its __getitem__ does more than take rows")
    return _Reader(definition, method.__globals__).item()


class _Reader:
    """Reads one `__getitem__`, statement by statement."""

    def __init__(self, definition: ast.FunctionDef, names: dict[str, Any]) -> None:
        arguments = definition.args
        plain = [a.arg for a in arguments.args]
        more = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs)
        if len(plain) != 2 or any(more) or definition.decorator_list:
            raise NotRows("its __getitem__ takes more than an index")
        self._self, self._index = plain
        self._names, self._body = names, definition.body
        self._known: dict[str, Any] = {}

    def item(self) -> Any:
        """What it returns."""
        for place, statement in enumerate(self._body):
            if isinstance(statement, ast.Return) and place == len(self._body) - 1:
                if statement.value is None:
                    break
                return self._part(statement.value)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], statement.value)
            elif not _is_docstring(statement):
                break
        raise NotRows("its __getitem__ does more than take rows")

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if not isinstance(target, ast.Tuple):
            self._know(target, self._part(value))
        elif isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            parts = [self._part(element) for element in value.elts]
            for name, part in zip(target.elts, parts, strict=True):
                self._know(name, part)
        else:
            raise NotRows("its __getitem__ does more than take rows")

    def _know(self, target: ast.expr, part: Any) -> None:
        if not isinstance(target, ast.Name) or target.id in (self._self, self._index):
            raise NotRows("its __getitem__ does more than take rows")
        self._known[target.id] = part

    def _part(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self._known:
            return self._known[node.id]
        if isinstance(node, (ast.Tuple, ast.List)):
            return Together(tuple(self._part(element) for element in node.elts))
        if isinstance(node, ast.Dict):
            return Together(tuple(map(self._part, node.values)), tuple(map(_text, node.keys)))
        if isinstance(node, ast.Subscript) and self._is_index(node.slice):
            return Column(self._attribute(node.value))
        if isinstance(node, ast.Call):
            return self._call(node)
        raise NotRows(f"its __getitem__ computes `{ast.unparse(node)}`"[:160])

    def _is_index(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._index

    def _attribute(self, node: ast.expr) -> str:
        owner = node.value if isinstance(node, ast.Attribute) else None
        if (
            isinstance(owner, ast.Name)
            and owner.id == self._self
            and isinstance(node, ast.Attribute)
        ):
            return node.attr
        raise NotRows(f"its __getitem__ computes `{ast.unparse(node)}`"[:160])

    def _call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute):
            maker = (
                self._names.get(function.value.id) if isinstance(function.value, ast.Name) else None
            )
            if maker is torch and function.attr in _MAKERS and len(node.args) == 1:
                return Converted(self._part(node.args[0]), "", self._dtype(node.keywords))
            if function.attr in _CONVERSIONS and not node.args and not node.keywords:
                part = self._part(function.value)
                if not isinstance(part, Together):
                    return Converted(part, function.attr)
        raise NotRows(f"its __getitem__ computes `{ast.unparse(node)}`"[:160])

    def _dtype(self, keywords: list[ast.keyword]) -> torch.dtype | None:
        if not keywords:
            return None
        value = keywords[0].value
        if len(keywords) == 1 and keywords[0].arg == "dtype" and isinstance(value, ast.Attribute):
            owner = self._names.get(value.value.id) if isinstance(value.value, ast.Name) else None
            found = getattr(torch, value.attr, None)
            if owner is torch and isinstance(found, torch.dtype):
                return found
        raise NotRows("its __getitem__ converts in a way that isn't known")


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _text(key: ast.expr | None) -> str:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    raise NotRows("its __getitem__ makes a dict with keys that aren't text")
