"""The part of a dataset's item that is the same every time, told from the part that is random.

A dataset's `__getitem__` is the script's own and cannot be looked into. But it nearly always
calls one transform, held in an attribute, and puts what comes back into the item as it is. So a
*twin* of the dataset, a shallow copy, is given a *hook* in place of the transform: the hook keeps
what it was called with and answers with a hole, and the item shows where the hole went. What was
kept is the decoded picture; the known deterministic transforms at the head of the pipeline are
applied to it once and for all, and later only the rest has to run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset

from hasten.instrument.seams.cache_codec import HOLE

#: Of torchvision, first and second version: they draw nothing and remember nothing.
_DETERMINISTIC = {
    *("Resize", "CenterCrop", "ToTensor", "PILToTensor", "ConvertImageDtype", "Normalize"),
    *("Grayscale", "Pad", "ToPILImage", "LinearTransformation", "ToImage", "ToDtype"),
    *("ToPureTensor", "RGB", "Identity"),
}
_RANDOM_LIBRARY = "torchvision.transforms"  # what is from there and not known above may be random
_COMPOSED = ("Compose",)
#: Attributes in which transforms are kept, as far as a class of torchvision doesn't tell.
_NAMES = ("transform", "augment", "tfm", "preproc", "aug")
_DEEPEST = 4  # datasets inside of each other


@dataclass(frozen=True)
class Place:
    """Where a transform is: attributes that lead from the dataset to it."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.path)


class Hook:
    """Takes the place of a transform in a twin and keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return HOLE


def places(dataset: Any) -> list[Place]:
    """Attributes that may hold the transform of a dataset, the likeliest first."""
    found: list[tuple[str, ...]] = []
    _collect(dataset, (), found, _DEEPEST)
    # `transform` before `target_transform`, and what is composed before a bare function
    return [Place(path) for path in sorted(found, key=lambda p: _rank(p, dataset))]


def _collect(
    dataset: Any, path: tuple[str, ...], found: list[tuple[str, ...]], deepest: int
) -> None:
    for name, value in getattr(dataset, "__dict__", {}).items():
        if name == "transforms" and hasattr(value, "target_transform"):
            continue  # VisionDataset's pair of the two, which are attributes as well
        if callable(value) and (is_composed(value) or any(n in name.lower() for n in _NAMES)):
            found.append((*path, name))
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    if inner is not None and hasattr(type(inner), "__getitem__") and deepest:
        _collect(inner, (*path, "dataset"), found, deepest - 1)


def _rank(path: tuple[str, ...], dataset: Any) -> tuple[bool, bool, int]:
    return (
        path[-1].startswith(("target", "label")),
        not is_composed(at(dataset, path)),
        len(path),
    )


def at(dataset: Any, path: Sequence[str]) -> Any:
    """The object at the end of a path of attributes."""
    for name in path:
        dataset = dataset.__dict__[name]
    return dataset


def is_composed(value: Any) -> bool:
    """Whether it is a list of torchvision's (or torch's) transforms, one after another."""
    kind = type(value)
    module = kind.__module__
    if module.startswith(_RANDOM_LIBRARY) and kind.__name__ in _COMPOSED:
        return True
    return module == "torch.nn.modules.container" and kind.__name__ == "Sequential"


def steps(transform: Any) -> list[Any]:
    """The transforms of a pipeline one by one; nested lists are taken apart."""
    if not is_composed(transform):
        return [transform]
    inner = getattr(transform, "transforms", None)
    parts = list(transform) if inner is None else list(inner)
    return [step for part in parts for step in steps(part)]


def known(step: Any) -> bool | None:
    """Whether a transform is deterministic; None: it has to be tried."""
    kind = type(step)
    if kind.__module__.startswith(_RANDOM_LIBRARY):
        return kind.__name__ in _DETERMINISTIC
    return None


def twin(dataset: Any, path: Sequence[str], hook: Any) -> Any:
    """A shallow copy of a dataset, with `hook` where `path` leads.

    Neither constructors nor `__copy__` of the script's classes are run.
    """
    copy = object.__new__(type(dataset))
    copy.__dict__.update(dataset.__dict__)
    name, *rest = path
    copy.__dict__[name] = twin(dataset.__dict__[name], rest, hook) if rest else hook
    pair = copy.__dict__.get("transforms")
    vision = sys.modules.get("torchvision.datasets.vision")
    if not rest and name == "transform" and type(pair) is getattr(vision, "StandardTransform", 0):
        assert vision is not None
        copy.__dict__["transforms"] = vision.StandardTransform(hook, pair.target_transform)
    return copy


def holes(value: Any, depth: int = 8) -> int:
    """How many holes an item has, in plain containers."""
    if value is HOLE:
        return 1
    if type(value) in (list, tuple) and depth:
        return sum(holes(item, depth - 1) for item in value)
    if type(value) is dict and depth:
        return sum(holes(item, depth - 1) for item in value.values())
    return 0


def filled(value: Any, content: Any) -> Any:
    """An item with `content` in its hole."""
    if value is HOLE:
        return content
    if type(value) in (list, tuple):
        return type(value)(filled(item, content) for item in value)
    if type(value) is dict:
        return {key: filled(item, content) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class Recipe:
    """How the items of one dataset are kept.

    Attributes:
        place: of the transform; None: whole items are kept.
        steps: how many steps of the transform are done once and for all; 0: none, only what the
            dataset does before it.
    """

    place: Place | None
    steps: int = 0

    @property
    def text(self) -> str:
        """For a user: what is kept."""
        if self.place is None:
            return "whole items"
        return f"items up to step {self.steps} of {self.place}" if self.steps else "decoded items"


class Split:
    """The two halves of a transform: what is kept of it, and what runs every time."""

    def __init__(self, dataset: Any, recipe: Recipe) -> None:
        assert recipe.place is not None
        self.path = recipe.place.path
        self.transform = at(dataset, self.path)
        self.whole = recipe.steps == 0  # the transform is called as the dataset calls it
        parts = [] if self.whole else steps(self.transform)
        self.first, self.rest = parts[: recipe.steps], parts[recipe.steps :]

    def keep(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """What is kept of one call of the transform."""
        args, kwargs = call
        if self.whole:
            return args, kwargs
        return _through(self.first, args[0])

    def finish(self, kept: Any) -> Any:
        """What the transform would have returned."""
        if self.whole:
            args, kwargs = kept
            return self.transform(*args, **kwargs)
        return _through(self.rest, kept)


def _through(functions: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    for function in functions:
        value = function(value)
    return value


def layers(dataset: Any) -> list[Any]:
    """A dataset and those inside it, as far as attributes named `dataset` lead."""
    found = [dataset]
    while len(found) <= _DEEPEST:
        inner = getattr(found[-1], "__dict__", {}).get("dataset")
        if inner is None or not hasattr(type(inner), "__getitem__"):
            break
        found.append(inner)
    return found


def inner_index(dataset: Any, index: int) -> tuple[Any, int] | None:
    """The innermost dataset behind plain subsets, and the index there; None: not that simple."""
    for layer in layers(dataset):
        if type(layer) is not Subset:
            return layer, index
        index = int(layer.indices[index])
    return None
