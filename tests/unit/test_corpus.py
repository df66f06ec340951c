"""The corpus: its table, its stand-in data, and the comparison of loss traces."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# A torch without torch: what the hook touches and nothing else.
FAKE_TORCH = """
import os, sys
class Tensor:
    def __init__(self, value): self.value = value
    def numel(self): return 1
    def detach(self): return self
    def item(self): return self.value
class autograd:
    @staticmethod
    def backward(tensors): print("backward", flush=True)
seeds = []
def manual_seed(seed): seeds.append(seed)
"""


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import corpus

    return corpus


@pytest.fixture
def corpus_data(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import corpus_data

    return corpus_data


@pytest.fixture
def loss_trace(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import loss_trace

    return loss_trace


def test_the_table_is_consistent(corpus: ModuleType) -> None:
    names = [each.name for each in corpus.SCRIPTS]
    assert len(names) == len(set(names)) >= 12
    for each in corpus.SCRIPTS:
        assert ("{workers}" in each.arguments) == bool(each.workers)
        assert all(name in corpus.corpus_data.DATASETS for name, _ in each.data)
        assert len(each.repository.commit) == 40
        assert each.notes and each.iteration_ms > 0 and each.iterations > 0
        assert each.loader or not (each.iterable or each.workers or each.fixed_workers)


def test_a_worker_count_is_filled_in_or_refused(corpus: ModuleType) -> None:
    assert corpus.script("imagenet").argv(2)[5:7] == ["-j", "2"]
    assert corpus.script("mnist").argv(0) == corpus.script("mnist").argv()
    with pytest.raises(ValueError, match="cannot be run with 2 workers"):
        corpus.script("mnist").argv(2)


def test_a_missing_copy_says_what_to_fetch(corpus: ModuleType, tmp_path: Path) -> None:
    each = corpus.script("nanogpt")
    with pytest.raises(corpus.MissingRepository, match="fetch github:karpathy/nanoGPT"):
        corpus.checkout(tmp_path / "root", [each.repository], tmp_path / "mirror")


def test_a_commit_is_checked_out_of_a_clone(corpus: ModuleType, tmp_path: Path) -> None:
    clone = tmp_path / "mirror" / "thing"
    clone.mkdir(parents=True)
    (clone / "train.py").write_text("print('here')\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command]
        subprocess.run(git, cwd=clone, check=True)
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True
    )
    repository = corpus.Repository("someone/thing", found.stdout.strip(), "thing")
    for _ in range(2):
        assert corpus.checkout(tmp_path / "root", [repository], tmp_path / "mirror") == []
    assert (tmp_path / "root" / "thing" / "train.py").read_text() == "print('here')\n"


def test_mnist_files_have_the_idx_format(corpus_data: ModuleType, tmp_path: Path) -> None:
    corpus_data.mnist(tmp_path, train=20, test=5)
    images = (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">IIII", images[:16]) == (2051, 20, 28, 28)
    assert len(images) == 16 + 20 * 28 * 28
    labels = (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">II", labels[:8]) == (2049, 5)
    assert max(labels[8:]) < 10


def test_images_are_what_the_scripts_expect(corpus_data: ModuleType, tmp_path: Path) -> None:
    corpus_data.cifar10(tmp_path, per_batch=4, test=2)
    batch = pickle.loads((tmp_path / "cifar-10-batches-py" / "data_batch_5").read_bytes())
    assert batch["data"].shape == (4, 3072) and batch["data"].dtype == np.uint8
    corpus_data.carvana(tmp_path, count=2)
    with (
        Image.open(tmp_path / "imgs" / "0001_01.jpg") as image,
        Image.open(tmp_path / "masks" / "0001_01_mask.gif") as mask,
    ):
        assert image.size == mask.size and len(np.unique(np.asarray(mask))) == 2


def test_text_is_split_and_encoded(corpus_data: ModuleType, tmp_path: Path) -> None:
    corpus_data.characters(tmp_path)
    meta = pickle.loads((tmp_path / "standin_char" / "meta.pkl").read_bytes())
    ids = [
        np.fromfile(tmp_path / "standin_char" / f"{name}.bin", dtype=np.uint16)
        for name in ("train", "val")
    ]
    text = "".join(meta["itos"][int(i)] for i in np.concatenate(ids))
    assert text == corpus_data.manual()
    assert len(meta["itos"]) == meta["vocab_size"]


def test_data_is_the_same_each_time_and_written_once(
    corpus_data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        corpus_data.cifar10(tmp_path / folder, per_batch=2, test=2)
    one, two = (tmp_path / x / "cifar-10-batches-py" / "data_batch_1" for x in "ab")
    assert one.read_bytes() == two.read_bytes()
    monkeypatch.setitem(corpus_data.DATASETS, "small", lambda into: None)
    assert corpus_data.write("small", tmp_path / "c")
    assert not corpus_data.write("small", tmp_path / "c")


def _fake_run(
    loss_trace: ModuleType, tmp_path: Path, script: str, calls: int = 0, **options: object
) -> object:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "script.py").write_text("import torch\n" + script)
    command = [sys.executable, str(tmp_path / "script.py")]
    return loss_trace.trace(command, calls, cwd=tmp_path, timeout=30, **options)


def test_losses_are_written_exactly_and_the_run_is_ended(
    loss_trace: ModuleType, tmp_path: Path
) -> None:
    script = "for i in range(9): torch.autograd.backward(torch.Tensor(0.1 * i))\nprint('end')"
    run = _fake_run(loss_trace, tmp_path, script, calls=4)
    assert run.losses == tuple((0.1 * i).hex() for i in range(4))
    assert run.status == 0 and run.output.split() == ["backward"] * 3


def test_a_script_that_ends_early_or_fails_is_told_apart(
    loss_trace: ModuleType, tmp_path: Path
) -> None:
    good = "torch.autograd.backward([torch.Tensor(1.0), torch.Tensor(2.0)])"
    plain = _fake_run(loss_trace, tmp_path, good, calls=4)
    failed = _fake_run(loss_trace, tmp_path, good + "\n1/0", calls=4)
    assert plain.losses == ("0x1.0000000000000p+0 0x1.0000000000000p+1",)
    assert loss_trace.difference(plain, plain).equal
    assert "after 1 of 4 calls" in loss_trace.difference(plain, plain, 4).reason
    assert "ended with 0 and 1" in loss_trace.difference(plain, failed).reason


def test_the_first_difference_is_found(loss_trace: ModuleType) -> None:
    def run(*losses: float) -> object:
        texts = tuple(loss.hex() for loss in losses)
        clock = tuple(float(i) for i in range(len(losses)))
        return loss_trace.Trace(texts, clock, clock, 0, "")

    assert loss_trace.difference(run(1.0, 2.0, 3.0), run(1.0, 2.5, 3.0)).first_difference == 1
    assert not loss_trace.difference(run(1.0), run(1.0, 2.0)).equal
    assert not loss_trace.difference(run(), run()).equal
    assert run(1.0, 2.0, 3.0, 4.0).step_ms() == (1000.0, 1000.0)


def test_the_seed_is_given_after_the_import(loss_trace: ModuleType, tmp_path: Path) -> None:
    script = "import random\nprint(torch.seeds, random.random())"
    runs = [_fake_run(loss_trace, tmp_path, script, seed=7).output for _ in range(2)]
    assert runs[0] == runs[1] and runs[0].startswith("[7]")
    assert _fake_run(loss_trace, tmp_path, script).output.startswith("[]")


def test_the_hook_lives_beside_another_one(loss_trace: ModuleType, tmp_path: Path) -> None:
    for name in ("front", "back"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(f"print('{name}')\n")
    places = [str(tmp_path / "back")]
    environment = {"PYTHONPATH": os.pathsep.join(places)}
    script = "torch.autograd.backward(torch.Tensor(3.0))\nprint(torch.__spec__.loader.name)"
    run = _fake_run(loss_trace, tmp_path, script, environment=environment)
    assert run.losses == ((3.0).hex(),)
    assert run.output.split() == ["back", "backward", "torch"]


def test_children_of_the_script_are_left_alone(loss_trace: ModuleType, tmp_path: Path) -> None:
    script = (
        "import os\ntorch.autograd.backward(torch.Tensor(1.0))\n"
        "pid = os.fork()\n"
        "torch.autograd.backward(torch.Tensor(2.0 if pid else 9.0))\n"
        "if pid: os.waitpid(pid, 0); print([v for v in os.environ if 'LOSS' in v])"
    )
    run = _fake_run(loss_trace, tmp_path, script)
    assert run.losses == ((1.0).hex(), (2.0).hex())
    assert run.output.split()[-1] == "[]"
