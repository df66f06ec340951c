"""Write scikit-learn's handwritten digits to disk as a real image set.

1,797 scans of 8x8 pixels become colour JPEG files in the layout that torchvision's ImageFolder
reads: train/0 ... train/9 and val/0 ... val/9, one sample in five held out. Paper, ink, lighting
and grain vary from file to file, and are the same on every run.

    python examples/make_data.py [FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIZE = 96  # pixels a side
DONE = "complete"  # written last, so that an interrupted run starts again


def photograph(digit: np.ndarray, index: int) -> Image.Image:
    """A colour picture of `digit`, a scan of 8x8 values from 0 to 16."""
    rng = np.random.default_rng(index)
    scan = Image.fromarray((digit / 16 * 255).astype(np.uint8))
    stroke = np.asarray(scan.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) / 255.0
    paper = rng.uniform(170, 250, 3)
    ink = rng.uniform(0, 90, 3)
    light = 1 + np.outer(
        np.linspace(-0.5, 0.5, SIZE) * rng.uniform(-0.4, 0.4),
        np.ones(SIZE),
    )
    picture = paper + (ink - paper) * stroke[:, :, None]
    picture = picture * light[:, :, None] + rng.normal(0, 4, (SIZE, SIZE, 1))
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def write(folder: Path) -> None:
    """Write every digit below `folder`, unless that was done before."""
    if (folder / DONE).exists():
        print(f"{folder} is complete")
        return
    digits = load_digits()
    for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = "val" if index % 5 == 0 else "train"
        target = folder / part / str(label)
        target.mkdir(parents=True, exist_ok=True)
        photograph(image, index).save(target / f"{index:04d}.jpg", quality=90)
    (folder / DONE).touch()
    print(f"wrote {len(digits.images)} images to {folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the handwritten digits as JPEG files.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "data")
    write(parser.parse_args().folder)
