"""Memory over batch size, the gradient noise scale, and what they come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, TensorDataset

from hasten.batching import GradientsSampled, MemoryUsed
from hasten.instrument.batching.gauge import iterations
from hasten.instrument.batching.gradients import Gradients
from hasten.instrument.seams.batch_size import BatchSizes
from hasten.instrument.seams.loader_facts import describe
from hasten.optimisations.memory.batch_size import sized, unsizable
from hasten.records import OptimizerFacts
from hasten.report.batches import render
from hasten.tuning import batch_option
from hasten.tuning.batch_advice import advise, learning_rate
from hasten.tuning.batch_document import document
from hasten.tuning.batch_records import Measured, Point
from hasten.tuning.fitting import Saving, best
from hasten.tuning.memory_model import fit
from hasten.tuning.noise_scale import NoiseScale, fieller, noise_scale, student

# --- memory ------------------------------------------------------------------------------------


def used(size: int, *curve: int, resident: int = 1000) -> MemoryUsed:
    """One size whose forward pass has this curve."""
    return MemoryUsed(size, "cpu", max(curve), resident, ("forward",), (len(curve),), (curve,))


def test_a_peak_that_no_small_batch_shows_is_predicted() -> None:
    """All gradients at 900 are the peak of small batches, 100 + 10 a sample that of large ones."""
    measured = [used(n, 100 + 10 * n, 900) for n in (8, 16, 32)]
    model = fit(measured)
    assert all(m.peak == 900 for m in measured)
    assert model.tensors(32) == pytest.approx(900)
    assert model.tensors(1000) == pytest.approx(10_100)
    assert model.line(1000) == (pytest.approx(100), pytest.approx(10))
    assert model.residual == pytest.approx(0, abs=1e-9)


def test_what_fits() -> None:
    model = fit([used(n, 100 + 10 * n, 900) for n in (8, 16, 32)])
    assert model.around == pytest.approx(100)  # 1000 resident
    assert model.largest(10_000) == pytest.approx(
        880, abs=1
    )  # 9000 less 100 around, less 100 fixed
    assert model.largest(1000) == 0
    assert fit([used(n, 500, 900) for n in (8, 16)]).largest(10_000) is None


@pytest.mark.parametrize("peak", [500, 10**9 + 1])
def test_no_line_is_laid_through_roundings(peak: int) -> None:
    """The same peak at every size: least squares still give some 1e-14 bytes a sample."""
    for sizes in ((8, 16), (8, 16, 32), (7, 50, 333)):
        assert fit([used(n, peak, 0) for n in sizes]).largest(1e12) is None


def test_what_allocators_keep_grows_with_the_batch() -> None:
    """Half as much as the tensors; a single size that took more lifts the whole line."""
    points = [used(n, 10 * n, resident=1000 + 15 * n + 7 * (n == 16)) for n in (8, 16, 32)]
    model = fit(points)
    assert model.around_per_sample == pytest.approx(5, abs=0.5)
    assert all(model.total(p.batch_size or 0) >= p.resident - 1e-6 for p in points)
    assert model.total(320) == pytest.approx(1000 + 15 * 320, rel=0.05)
    assert model.largest(10_000) == pytest.approx(8000 / 15, rel=0.05)


def test_sizes_with_other_allocations_are_described_by_their_peaks() -> None:
    model = fit([used(8, 100, 180), used(16, 260), used(32, 420, 300, 20)])
    assert not model.aligned
    assert model.tensors(64) == pytest.approx(740)
    with pytest.raises(ValueError, match="two"):
        fit([used(8, 1)])


def test_without_tensors_the_resident_memory_counts() -> None:
    points = [
        MemoryUsed(n, "cpu", 0, resident=1000 + 5 * n, trouble="a profiler runs") for n in (8, 16)
    ]
    assert fit(points).tensors(100) == pytest.approx(1500)


def test_iterations_of_a_gauge() -> None:
    changes: list[int | str] = [7, "iteration", 5, -2, "step", 4, "iteration", 1]
    first, second = iterations(changes, [100, 200])
    assert [(p.kind, p.curve) for p in first] == [
        ("iteration", [100, 105, 103]),
        ("step", [103, 107]),
    ]
    assert second[0].curve == [200, 201]


# --- noise scale -------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """Half the squared distance to a sample: its gradient is the distance itself."""

    def __init__(self, distance: float, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), distance))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return (self.weight - samples).square().sum(1).mean() / 2


def sampled(steps: int, batch: int, distance: float, spread: float, seed: int) -> GradientsSampled:
    """Gradients as a child takes them, with clipping and steps as a script has them."""
    size = 60
    model, draw = Quadratic(distance, size), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = Gradients(list(model.parameters()), 16)
    taken.install()
    try:
        for step in range(steps):
            optimizer.zero_grad()
            model(spread * torch.randn(batch, size, generator=draw)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            taken.border(valid=step % 10 != 3)
    finally:
        taken.uninstall()
    assert torch.equal(model.weight, torch.full((size,), distance)), "weights must stand still"
    return GradientsSampled(batch, tuple(taken.counts), tuple(taken.squares), taken.products())


@pytest.mark.parametrize(("batch", "spread"), [(4, 1.0), (16, 1.0), (16, 3.0), (64, 0.5)])
def test_noise_scale_of_a_quadratic(batch: int, spread: float) -> None:
    """tr(S) is 60 spread^2 and |G|^2 is 60 distance^2, so the scale is (spread / distance)^2."""
    known = (spread / 0.3) ** 2
    found = noise_scale(sampled(600, batch, 0.3, spread, seed=batch))
    assert found is not None and found.samples is not None and found.high is not None
    assert found.samples == pytest.approx(known, rel=0.15)
    assert found.low < known < found.high
    assert found.steps == 540


def test_its_interval_holds_the_value_as_often_as_it_says() -> None:
    """By simulation of what a child sends; also where the signal is nearly lost in noise."""
    rng = np.random.default_rng(5)
    held = {}
    for distance in (1.0, 0.15):
        known, held[distance] = 1 / distance**2, 0
        for _ in range(300):
            gradients = distance + rng.normal(size=(64, 40)) / np.sqrt(8)
            groups = gradients.reshape(16, 4, 40)
            sums = groups.sum(axis=1)
            message = GradientsSampled(
                batch_size=8,
                counts=(4,) * 16,
                squares=tuple(float(x) for x in (groups**2).sum(axis=(1, 2))),
                sums=tuple(tuple(float(x) for x in row) for row in sums @ sums.T),
            )
            found = noise_scale(message)
            assert found is not None
            held[distance] += found.low <= known and (found.high is None or known <= found.high)
    assert all(count >= 0.9 * 300 for count in held.values()), held


def test_a_signal_that_is_lost_has_no_upper_end() -> None:
    found = noise_scale(sampled(60, 4, 0.0, 1.0, seed=1))
    assert found is not None and found.high is None


def test_no_noise_scale_of_nothing() -> None:
    assert noise_scale(GradientsSampled(None, (), (), (), "why")) is None
    assert noise_scale(GradientsSampled(8, (1, 1, 0), (1.0, 1.0, 0.0), ((0.0,) * 3,) * 3)) is None


def test_fieller_without_error_is_the_ratio_and_student_is_as_in_tables() -> None:
    assert fieller(6.0, 2.0, np.zeros((2, 2)), 2.0) == (3.0, 3.0)
    for freedom, t in ((3, 3.182), (5, 2.571), (15, 2.131), (100, 1.984)):
        assert student(freedom) == pytest.approx(t, rel=0.01)


# --- advice ------------------------------------------------------------------------------------


def measured(make_profile: Any, noise: float | None, **speeds: float) -> Measured:
    points = [
        Point(
            int(name[1:]),
            dataclasses.replace(used(int(name[1:]), 10), seconds=1.0),
            "",
            (1.0,),
            speed,
        )
        for name, speed in speeds.items()
    ]
    scale = None if noise is None else NoiseScale(noise, noise / 2, noise * 2, 100, 32)
    return Measured(make_profile(), 32, 1, 10**9, points, noise=scale)


def test_a_small_noise_scale_keeps_batches_small(make_profile: Callable[..., Any]) -> None:
    speeds = {"s16": 90.0, "s32": 100.0, "s64": 150.0, "s128": 160.0}
    assert advise(measured(make_profile, 10.0, **speeds)).best == 16
    large = advise(measured(make_profile, 10_000.0, **speeds))
    assert (large.best, large.knee) == (128, 64)
    assert large.times[64] == pytest.approx((1 + 64e-4) / 150 * 100 / (1 + 32e-4))
    assert advise(measured(make_profile, None, **speeds)).best is None
    level = {"s16": 100.0, "s32": 100.0, "s64": 101.0}
    assert advise(measured(make_profile, 1e9, **level)).best == 32, "not for one part in a hundred"


def test_advice_to_stay_says_what_was_not_measured(make_profile: Callable[..., Any]) -> None:
    speeds = {"s16": 100.0, "s32": 120.0}
    for noise, hint in ((1000.0, "; more than 32, by the noise scale, may"), (50.0, "sooner\n")):
        found = measured(make_profile, noise, **speeds)
        found.stopped = "the budget ends here"
        text = render(document(found))
        assert "advice: stay with this batch size" in text and hint in text


def test_learning_rate_rules() -> None:
    def facts(name: str) -> tuple[OptimizerFacts, ...]:
        return (OptimizerFacts(name, "torch.optim", 1, 1, 1, None, None, False, 1.0),)

    assert learning_rate(facts("SGD"), 4.0)[1] == 4.0
    assert learning_rate(facts("AdamW"), 4.0)[1] == 2.0


# --- the loader --------------------------------------------------------------------------------


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index


def built(
    make: Callable[[], DataLoader[Any]], size: int = 20
) -> tuple[DataLoader[Any], BatchSizes]:
    """A loader as it is built by a script whose loader is to have another size."""
    facts = describe(make(), None, 0)
    assert unsizable(facts) == ""
    sizes = BatchSizes(sized(facts, size))
    sizes.install()
    try:
        return make(), sizes
    finally:
        sizes.uninstall()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Numbers(), 10, shuffle=True),
        lambda: DataLoader(Numbers(), batch_size=10, drop_last=True),
        lambda: DataLoader(Numbers(), 10, sampler=torch.utils.data.RandomSampler(Numbers())),
        lambda: DataLoader(
            Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(100)), 10, True)
        ),
        lambda: DataLoader(Numbers(), 10, collate_fn=lambda items: {"ragged": items}),
    ],
    ids=["shuffled", "drop-last", "sampler", "batch-sampler", "dict"],
)
def test_the_loader_is_built_with_another_size(make: Callable[[], DataLoader[Any]]) -> None:
    loader, sizes = built(make)
    assert sizes.changed == 1 and sizes.trouble == ""
    assert len(loader) == 5
    first = next(iter(loader))
    assert len(first["ragged"] if isinstance(first, dict) else first) == 20


def test_only_the_training_loader_is_changed() -> None:
    facts = describe(DataLoader(Numbers(), 10, shuffle=True), None, 0)
    sizes = BatchSizes(sized(facts, 20))
    sizes.install()
    try:
        others = [
            DataLoader(Numbers(), 10),
            DataLoader(Numbers(), 12, shuffle=True),
            DataLoader(TensorDataset(torch.zeros(100)), 10, shuffle=True),
            DataLoader(torch.utils.data.Subset(Numbers(), range(50)), 10, shuffle=True),
        ]
    finally:
        sizes.uninstall()
    assert [loader.batch_size for loader in others] == [10, 12, 10, 10]
    assert sizes.trouble


def test_loaders_that_make_their_own_batches_are_refused() -> None:
    class Own(BatchSampler):
        pass

    own = DataLoader(Numbers(), batch_sampler=Own(SequentialSampler(range(100)), 10, False))
    assert "a batch sampler of its own (Own)" in unsizable_text(own)
    assert "given whole batches" in unsizable_text(DataLoader(Numbers(), batch_size=None))


def unsizable_text(loader: DataLoader[Any]) -> str:
    return unsizable(describe(loader, None, 0))


def test_options_for_a_batch_size(tmp_path: Path) -> None:
    assert batch_option.given(("t.py", "--lr", "1", "--batch-size", "32"), 32) == "--batch-size"
    assert batch_option.given(("t.py", "--bs=32"), 32) == "--bs"
    assert batch_option.given(("t.py", "--epochs", "32"), 32) is None
    assert batch_option.passing(("t.py", "--bs=32"), "--bs", 64) == ("t.py", "--bs=64")
    assert batch_option.passing(("t.py", "-b", "32", "x"), "-b", 64) == ("t.py", "-b", "64", "x")
    assert batch_option.passing(("t.py",), "--bs", 64) == ("t.py", "--bs", "64")
    script = tmp_path / "t.py"
    script.write_text("p.add_argument('-b', '--batch_size', type=int)\nf('--batch-size')\n")
    assert batch_option.offered(script) == "--batch_size"
    script.write_text("f('--batch-size')\n")
    assert batch_option.offered(script) is None


def test_what_makes_it_fit() -> None:
    """The quickest that fits and is proven."""
    tried = [
        Saving("checkpoint-blocks", 2, 900, 0, 1.1),
        Saving("checkpoint-blocks", 1, 700, 0, 1.3, "not the same bits"),
        Saving("micro-batches", 2, 750, 0, 1.5),
        Saving("micro-batches", 4, 600, 0, 1.4),
        Saving("micro-batches", 8, refused="out of memory"),
    ]
    assert best(tried, 800) == tried[3]
    assert best(tried, 500) is None
