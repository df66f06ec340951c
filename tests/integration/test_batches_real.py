"""Memory and batch sizes on real programs in children of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.batching import GradientsSampled, MeasureMemory, MemoryUsed, SampleGradients
from hasten.instrument.shield.launch import ShieldMode
from hasten.records import Setting, Watch
from hasten.tuning.memory_model import fit
from hasten.tuning.noise_scale import noise_scale
from hasten.tuning.process import Child

SCRIPTS = Path(__file__).parent.parent / "scripts"


def sized(size: int, dataset: str = "TensorDataset", items: int = 2048) -> Setting:
    wanted = {"size": size, "from": 8, "dataset": dataset, "items": items, "shuffled": True}
    return {"batch-size": wanted} if size != 8 else {}


def weigh(model: str, size: int, **setting: Any) -> MemoryUsed:
    """Memory of a model at one batch size, in a process that was started for it."""
    start = sized(size) | {name.replace("_", "-"): value for name, value in setting.items()}
    return asked((str(SCRIPTS / "batch_models.py"), model), size, start)


def asked(argv: tuple[str, ...], size: int, start: Setting) -> MemoryUsed:
    """What a process says that was started with this setting."""
    child = Child(argv, ShieldMode.NONE, print, cwd=str(SCRIPTS), start_setting=start)
    try:
        child.start()
        answer = child.ask(MeasureMemory(3, 2, start), 120.0)
    finally:
        child.close()
    assert isinstance(answer, MemoryUsed), answer
    assert answer.no_effect == {} and answer.trouble == ""
    assert answer.batch_size == size
    return answer


def prediction(model: str, size: int) -> tuple[float, float]:
    """Bytes that three small sizes predict for a large one, and those that it takes."""
    model_ = fit([weigh(model, small) for small in (4, 8, 16)])
    return model_.tensors(size), weigh(model, size).peak


@pytest.mark.parametrize(
    "model",
    [
        "perceptron",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "residual",
                *("convolutions", "autoencoder", "recurrent", "transformer"),
                *("gpt", "vit", "unet", "bag"),
            )
        ),
    ],
)
def test_peak_memory_is_predicted_from_small_batches(model: str) -> None:
    predicted, peak = prediction(model, 160)
    assert predicted == pytest.approx(peak, rel=0.1)


def test_what_saves_memory_is_there_from_the_first_iteration_on() -> None:
    whole = weigh("transformer", 64).peak
    assert weigh("transformer", 64, checkpoint_blocks=1).peak < 0.6 * whole
    assert weigh("transformer", 64, micro_batches=4).peak < 0.6 * whole


@pytest.mark.parametrize(
    "kind",
    [
        *("ragged", "batch-sampler"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dict", "drop-last", "sampler")),
    ],
)
def test_loaders_of_many_kinds_are_given_another_size(kind: str) -> None:
    start = sized(24, "Texts", 1000)
    assert asked((str(SCRIPTS / "batch_loaders.py"), kind), 24, start).peak > 0


def batch(*line: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hasten", "batch", "--json", "--budget", "5"]
    return subprocess.run(
        [*command, *line], capture_output=True, text=True, timeout=300, check=False
    )


def test_batches_that_the_script_makes_by_itself_are_refused() -> None:
    done = batch(str(SCRIPTS / "batch_loaders.py"), "own")
    assert done.returncode == 2
    assert "put together by a batch sampler of its own (ByLength)" in done.stderr


@pytest.mark.slow  # five processes
def test_a_size_that_does_not_fit_is_recorded_and_others_are_measured() -> None:
    done = batch("--sizes", "4,16,64", str(SCRIPTS / "batch_loaders.py"), "crowded")
    assert done.returncode == 0, done.stderr
    rows = {row["size"]: row for row in json.loads(done.stdout)["sizes"]}
    assert rows[64]["failed"].startswith("out of memory (RuntimeError: DefaultCPUAllocator")
    assert all(rows[size]["samples_per_second"] > 0 for size in (4, 8, 16))


def test_gradients_are_taken_at_weights_that_stand_still() -> None:
    child = Child(
        (str(SCRIPTS / "batch_models.py"), "perceptron"), ShieldMode.NONE, print, cwd=str(SCRIPTS)
    )
    try:
        child.start()
        child.ask(Watch(4, 10.0), 120.0)
        answer = child.ask(SampleGradients(40, 60.0), 120.0)
    finally:
        child.close()
    assert isinstance(answer, GradientsSampled) and answer.trouble == ""
    assert sum(answer.counts) == 40 and answer.batch_size == 8
    assert noise_scale(answer) is not None
