"""Data of the workloads, made from what scikit-learn ships: photographs, digits, descriptions."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import sklearn.datasets
import torch
from PIL import Image

SIDE = 192  # pixels of a stored JPEG


def jpegs(count: int, classes: int = 8) -> tuple[list[bytes], list[int]]:
    """Crops of the two sample photographs as JPEG files in memory, with labels.

    The label says which part of which photograph a crop comes from.
    """
    photographs = sklearn.datasets.load_sample_images().images
    random = np.random.default_rng(0)
    files, labels = [], []
    for place in range(count):
        label = place % classes
        photograph = photographs[label % 2]
        height, width = photograph.shape[:2]
        strip = (width - SIDE) // (classes // 2)
        left = (label // 2) * strip + random.integers(0, strip)
        top = random.integers(0, height - SIDE)
        file = io.BytesIO()
        crop = np.ascontiguousarray(photograph[top : top + SIDE, left : left + SIDE])
        Image.fromarray(crop).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
        labels.append(label)
    return files, labels


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1797 handwritten digits: images (n, 1, 8, 8) in 0 to 1, and labels (n,)."""
    bunch = sklearn.datasets.load_digits()
    images = torch.from_numpy(bunch.images.astype(np.float32) / 16.0)[:, None]
    return images, torch.from_numpy(bunch.target.astype(np.int64))


def text() -> tuple[torch.Tensor, int]:
    """The descriptions of scikit-learn's data sets as character numbers, and how many there are."""
    folder = Path(sklearn.datasets.__file__).parent / "descr"
    joined = "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.rst")))
    alphabet = sorted(set(joined))
    number = {character: place for place, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in joined]), len(alphabet)
