"""Stand-in data for the corpus of public training scripts.

No script of the corpus can download its data set where the benchmarks run, so
each format is written here from what is on every machine that has the demo's
dependencies: scikit-learn's handwritten digits and its two sample photographs
for images, and the text of Python's own reference manual (`pydoc_data`) for
language. Files have the names, layouts and value ranges of the real data sets
and can be learnt from (a digit's class decides the label), but are small: a
run lasts for hundreds of iterations, not for a day.

Everything is drawn from generators seeded by the data set's name, so writing
twice gives the same bytes with the same libraries. A data set that is already
there is left alone (a folder gets a `.complete` mark when it is whole).

    python benchmarks/corpus_data.py --into DIRECTORY NAME [NAME...]
    python benchmarks/corpus_data.py --list
"""

from __future__ import annotations

import argparse
import pickle
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]
Pixels = tuple[int, int]

TRAIN_SHARE = 0.8  # of scikit-learn's digits; the test images come from the others


# --------------------------------------------------------------- what images are made of
class Pictures:
    """Digits and photograph patches, drawn from one seeded generator."""

    def __init__(self, seed: str) -> None:
        """Load the sources. `seed` is a name; equal names draw equal pictures."""
        from sklearn.datasets import load_digits, load_sample_images

        digits = load_digits()
        self._glyphs = (digits.images * (255 / 16)).astype(np.uint8)
        self._labels = digits.target.astype(int)
        self._photos = [Image.fromarray(photo) for photo in load_sample_images().images]
        self.random = np.random.default_rng(zlib.crc32(seed.encode()))

    def digit(self, size: int, train: bool) -> tuple[Image.Image, int]:
        """Draw a digit of `size` pixels, at a random scale and place, and its class."""
        border = int(len(self._glyphs) * TRAIN_SHARE)
        first, last = (0, border) if train else (border, len(self._glyphs))
        chosen = int(self.random.integers(first, last))
        inner = int(self.random.integers(size * 3 // 4, size + 1))
        glyph = Image.fromarray(self._glyphs[chosen]).resize(
            (inner, inner), Image.Resampling.BICUBIC
        )
        canvas = Image.new("L", (size, size))
        x, y = (int(v) for v in self.random.integers(0, size - inner + 1, 2))
        canvas.paste(glyph, (x, y))
        return canvas, int(self._labels[chosen])

    def patch(self, size: Pixels, photo: int | None = None) -> Image.Image:
        """Cut a patch of width x height pixels from a photograph, scaled and maybe mirrored."""
        source = self._photos[int(self.random.integers(2)) if photo is None else photo]
        width, height = size
        largest = min(source.width / width, source.height / height)
        scale = float(self.random.uniform(min(0.5, largest), largest))
        w, h = int(width * scale), int(height * scale)
        x = int(self.random.integers(0, source.width - w + 1))
        y = int(self.random.integers(0, source.height - h + 1))
        patch = source.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
        mirrored = bool(self.random.integers(2))
        return patch.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else patch

    def scene(self, size: Pixels, train: bool) -> tuple[Image.Image, Image.Image, int]:
        """Draw a coloured digit on a photograph: the image, the digit's mask, its class."""
        image = self.patch(size)
        glyph, label = self.digit(min(size), train)
        mask = Image.new("L", size)
        mask.paste(glyph, ((size[0] - glyph.width) // 2, (size[1] - glyph.height) // 2))
        colour = tuple(int(c) for c in self.random.integers(128, 256, 3))
        image.paste(Image.new("RGB", size, colour), (0, 0), mask)
        return image, mask, label


# ------------------------------------------------------------------------ image data sets
def mnist(into: Path, train: int = 12800, test: int = 2000) -> None:
    """MNIST's four IDX files, uncompressed, as torchvision keeps them in `MNIST/raw`.

    torchvision only asks whether the four files exist, so `download=True` is
    satisfied without a network.
    """
    pictures = Pictures("mnist")
    for prefix, count, is_train in (("train", train, True), ("t10k", test, False)):
        drawn = [pictures.digit(28, is_train) for _ in range(count)]
        images = np.stack([np.asarray(image) for image, _ in drawn])
        labels = np.array([label for _, label in drawn], dtype=np.uint8)
        _write_idx(into / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", images)
        _write_idx(into / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", labels)


def _write_idx(path: Path, array: Bytes) -> None:
    """Write the IDX format: two zeros, type 8 (unsigned byte), rank, sizes, then the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


def _cifar_rows(pictures: Pictures, count: int, train: bool) -> tuple[Bytes, list[int]]:
    """Draw `count` scenes as CIFAR keeps them: one row of 3 x 32 x 32 bytes an image."""
    drawn = [pictures.scene((32, 32), train) for _ in range(count)]
    rows = np.stack([np.asarray(image).transpose(2, 0, 1).ravel() for image, _, _ in drawn])
    return rows, [label for _, _, label in drawn]


def cifar10(into: Path, per_batch: int = 2000, test: int = 1000) -> None:
    """CIFAR-10's python-pickle batches in `cifar-10-batches-py`.

    torchvision compares checksums with the real files, which no other data can
    have; `benchmarks/hooks/sitecustomize.py` makes it ask for existence only.
    """
    pictures = Pictures("cifar10")
    folder = into / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, 6):
        rows, labels = _cifar_rows(pictures, per_batch, train=True)
        _write_pickle(folder / f"data_batch_{number}", {"data": rows, "labels": labels})
    rows, labels = _cifar_rows(pictures, test, train=False)
    _write_pickle(folder / "test_batch", {"data": rows, "labels": labels})
    names = [f"class {number}" for number in range(10)]
    _write_pickle(folder / "batches.meta", {"label_names": names, "num_vis": 3072})


def cifar100(into: Path, train: int = 8000, test: int = 1000) -> None:
    """CIFAR-100's `cifar-100-python`; ten of the hundred fine labels occur."""
    pictures = Pictures("cifar100")
    folder = into / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("test", test)):
        rows, labels = _cifar_rows(pictures, count, train=name == "train")
        fine = [10 * label for label in labels]
        _write_pickle(folder / name, {"data": rows, "fine_labels": fine, "coarse_labels": labels})
    _write_pickle(folder / "meta", {"fine_label_names": [f"class {i}" for i in range(100)]})


def _write_pickle(path: Path, content: dict[str, Any]) -> None:
    with path.open("wb") as file:
        pickle.dump(content, file, protocol=4)


def image_folder(into: Path, train: int = 1600, val: int = 160) -> None:
    """ImageNet's layout: `imagenet/{train,val}/CLASS/*.JPEG`, 400 x 300 pixels."""
    pictures = Pictures("imagenet")
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            image, _, label = pictures.scene((400, 300), split == "train")
            path = into / "imagenet" / split / f"n0000000{label}" / f"{number:05d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=85)


def bsds300(into: Path, train: int = 200, test: int = 40) -> None:
    """The Berkeley segmentation images: `dataset/BSDS300/images/{train,test}/*.jpg`."""
    pictures = Pictures("bsds300")
    for split, count in (("train", train), ("test", test)):
        folder = into / "dataset" / "BSDS300" / "images" / split
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pictures.patch((481, 321)).save(folder / f"{number:06d}.jpg", quality=90)


def carvana(into: Path, count: int = 320) -> None:
    """Carvana's pairs: `imgs/NAME.jpg` and the two-valued `masks/NAME_mask.gif`."""
    pictures = Pictures("carvana")
    for kind in ("imgs", "masks"):
        (into / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image, mask, _ = pictures.scene((128, 96), train=True)
        image.save(into / "imgs" / f"{number:04d}_01.jpg", quality=90)
        outline = mask.point(lambda value: 255 if value > 96 else 0)
        outline.convert("1").save(into / "masks" / f"{number:04d}_01_mask.gif")


# ------------------------------------------------------------------------- text data sets
def manual() -> str:
    """Python's reference manual as text, about 460,000 characters."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def _parts(text: str, shares: tuple[float, ...]) -> Iterator[str]:
    """Cut a text at line ends into parts of the given shares."""
    lines = text.splitlines(keepends=True)
    done = 0.0
    for share in shares:
        first, done = round(done * len(lines)), done + share
        yield "".join(lines[first : round(done * len(lines))])


def wikitext(into: Path, vocabulary: int = 4000) -> None:
    """wikitext-2's `train.txt`, `valid.txt`, `test.txt`: words by blanks, rare ones `<unk>`."""
    folder = into / "wikitext-2"
    folder.mkdir(parents=True, exist_ok=True)
    words = re.compile(r"\w+|[^\w\s]")
    counts = Counter(words.findall(manual()))
    known = {word for word, _ in sorted(counts.items(), key=lambda e: (-e[1], e[0]))[:vocabulary]}
    for name, part in zip(
        ("train", "valid", "test"), _parts(manual(), (0.8, 0.1, 0.1)), strict=True
    ):
        lines = (words.findall(line) for line in part.splitlines())
        kept = (" ".join(w if w in known else "<unk>" for w in line) for line in lines)
        text = "".join(f" {line} \n" for line in kept)
        (folder / f"{name}.txt").write_text(text, encoding="utf8")


def characters(into: Path) -> None:
    """nanoGPT's character data: `train.bin`, `val.bin` (uint16 ids) and `meta.pkl`."""
    folder = into / "standin_char"
    folder.mkdir(parents=True, exist_ok=True)
    itos = dict(enumerate(sorted(set(manual()))))
    stoi = {character: number for number, character in itos.items()}
    for name, part in zip(("train", "val"), _parts(manual(), (0.9, 0.1)), strict=True):
        np.array([stoi[c] for c in part], dtype=np.uint16).tofile(folder / f"{name}.bin")
    _write_pickle(folder / "meta.pkl", {"vocab_size": len(itos), "itos": itos, "stoi": stoi})


def plain_text(into: Path) -> None:
    """`input.txt`, the one text file that minGPT's chargpt reads."""
    (into / "input.txt").write_text(manual(), encoding="utf8")


def token_shards(into: Path, shards: int = 5) -> None:
    """llama2.c's pretokenised TinyStories: `tok512/data*.bin`, uint16, stories start with 1."""
    folder = into / "tok512"
    folder.mkdir(parents=True, exist_ok=True)
    ids = {character: number + 3 for number, character in enumerate(sorted(set(manual())))}
    for number, part in enumerate(_parts(manual(), (1 / shards,) * shards)):
        stories = ([1, *(ids[c] for c in story)] for story in part.split("\n\n"))
        tokens = [token for story in stories for token in story]
        np.array(tokens, dtype=np.uint16).tofile(folder / f"data{number:02d}.bin")


# --------------------------------------------------------------------------- number series
def sine_waves(into: Path, waves: int = 32, length: int = 41, period: int = 20) -> None:
    """`traindata.pt`: float64 sine waves of shape (waves, length), shifted at random.

    The script's own generator writes 100 waves of 1000 steps, which takes
    seconds for each of LBFGS's closures; these take some ten milliseconds.
    """
    import torch

    shifts = np.random.default_rng(2).integers(-4 * period, 4 * period, waves)
    steps = np.arange(length)[None, :] + shifts[:, None]
    torch.save(np.sin(steps / period), into / "traindata.pt")


DATASETS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "image_folder": image_folder,
    "bsds300": bsds300,
    "carvana": carvana,
    "wikitext": wikitext,
    "characters": characters,
    "plain_text": plain_text,
    "token_shards": token_shards,
    "sine_waves": sine_waves,
}


def write(name: str, into: Path) -> bool:
    """Write one data set into a folder, unless it is already there.

    Args:
        name: a key of `DATASETS`.
        into: the folder that the script would let the data be downloaded to.

    Returns:
        Whether anything was written.

    Raises:
        KeyError: no data set has that name.
    """
    mark = into / f".{name}.complete"
    if mark.exists():
        return False
    into.mkdir(parents=True, exist_ok=True)
    DATASETS[name](into)
    mark.touch()
    return True


def main() -> None:
    """Write the named data sets into a folder."""
    parser = argparse.ArgumentParser(description="Write stand-in data sets.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--into", type=Path, default=Path("standin-data"))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, function in DATASETS.items():
            print(f"{name:14s} {(function.__doc__ or '').splitlines()[0]}")
        return
    unknown = sorted(set(options.names) - set(DATASETS))
    if unknown:
        parser.error(f"no data set named {', '.join(unknown)}; there are {', '.join(DATASETS)}")
    for name in options.names:
        print(f"{name}: {'written' if write(name, options.into) else 'already there'}")


if __name__ == "__main__":
    main()
