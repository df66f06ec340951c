"""When may items outlive their process? When all that they are made of has a name.

That is so for torchvision's folders of pictures, read by torchvision's own loader and prepared
by its own transforms: the files, what is done to them, and the versions of what does it make the
key; each file's size and time are looked at whenever its item is read.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy
import torch
from torch.utils.data import Subset

from hasten.instrument.seams.cache_pipeline import Recipe, at, layers, steps

_FOLDERS = ("DatasetFolder", "ImageFolder")
_LOADERS = ("default_loader", "pil_loader")
_FORMAT = 1  # of what is stored


def folder_of(dataset: Any) -> Any | None:
    """The torchvision folder behind a dataset and its subsets; None: it is something else."""
    found = layers(dataset)
    inner = found[-1]
    if any(type(layer) is not Subset for layer in found[:-1]):
        return None
    kind = type(inner)
    module = sys.modules.get("torchvision.datasets.folder")
    if module is None or not any(kind is getattr(module, name) for name in _FOLDERS):
        return None
    plain = (list, tuple)
    return inner if all(type(sample) in plain for sample in inner.samples[:8]) else None


def key_of(dataset: Any, recipe: Recipe) -> tuple[str, str]:
    """The key under which items of a dataset may be kept for later runs.

    Returns:
        The key and an empty string, or an empty string and why there is none.
    """
    folder = folder_of(dataset)
    if folder is None:
        return "", "the files behind its items aren't known"
    if folder.target_transform is not None:
        return "", "it has a target_transform of the script's own"
    module = sys.modules["torchvision.datasets.folder"]
    if not any(folder.loader is getattr(module, name) for name in _LOADERS):
        return "", "its pictures are loaded by a function of the script's own"
    if recipe.place is None:
        return "", "its whole items are kept"
    described = [_described(s) for s in steps(at(dataset, recipe.place.path))[: recipe.steps]]
    if None in described:
        return "", "a transform has settings that can't be written down"
    digest = hashlib.sha256()
    facts = (_FORMAT, sys.byteorder, recipe.text, recipe.steps, described, _versions())
    digest.update(json.dumps(facts).encode())
    for layer in layers(dataset)[:-1]:
        digest.update(numpy.asarray([int(i) for i in layer.indices], dtype="<i8").tobytes())
    for path, target in folder.samples:
        digest.update(f"{path}\0{target}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32], ""


def _described(step: Any) -> str | None:
    """A transform and its settings; None: they aren't plain."""
    settings = {k: v for k, v in vars(step).items() if not k.startswith("_")}
    if isinstance(step, torch.nn.Module):
        settings.pop("training", None)
    texts = {name: repr(value) for name, value in sorted(settings.items())}
    if any(" at 0x" in text for text in texts.values()):
        return None
    return f"{type(step).__module__}.{type(step).__qualname__}{texts}"


def _versions() -> list[str]:
    """Of everything that has a hand in the pixels."""
    names = ("torch", "torchvision", "PIL", "numpy")
    found = [f"{n} {getattr(sys.modules.get(n), '__version__', '')}" for n in names]
    torchvision: Any = sys.modules["torchvision"]
    from PIL import features

    return [*found, torchvision.get_image_backend(), str(features.version("jpg"))]
