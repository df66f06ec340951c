"""The arithmetic behind the bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.instrument.proof import bounds
from hasten.instrument.proof.deviation import compare, deviation, overall, same_bits
from hasten.instrument.proof.random_draws import DitheredMasks, SameDraws
from hasten.instrument.proof.rounding import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    Format,
    Noise,
    Rounding,
    coarsest,
)
from hasten.instrument.proof.structure import Rebuild, tensors_in


def noisy(g: dict[str, torch.Tensor], size: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: t * (1 + size * torch.randn(t.shape, generator=generator)) for n, t in g.items()}


@pytest.fixture
def gradient() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {n: torch.randn(200, generator=generator) for n in "abc"}


def test_deviation_of_known_vectors() -> None:
    d = deviation(torch.tensor([0.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 0.0]))
    assert (d.difference, d.reference, d.product, d.lost, d.gained) == (10.0, 5.0, 4.0, 1, 1)
    assert d.gone == 1.0 and d.projection == 0.8 and not d.equal


def test_a_missing_gradient_is_zero_and_not_equal() -> None:
    d = deviation(None, torch.ones(3))
    assert d.difference == d.reference == 3 and d.lost == 3 and not d.equal
    assert deviation(None, None).equal


def test_values_that_are_not_finite_are_counted() -> None:
    d = deviation(torch.tensor([math.nan, 1.0, 2.0]), torch.tensor([1.0, math.inf, 2.0]))
    assert (d.bad, d.reference_bad, d.difference) == (1, 1, 0.0)


def test_bits_are_compared_not_values() -> None:
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not same_bits(torch.ones(2), torch.ones(2).double())
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert same_bits(channels_last, channels_last.contiguous())


def test_sparse_and_dense_gradients_can_be_compared() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.ones(1, 2), (3, 2), check_invariants=True
    )
    assert deviation(sparse, sparse).equal
    assert deviation(sparse, sparse.to_dense()).difference == 0


def test_a_gradient_that_is_zero_but_for_rounding_does_not_count(
    gradient: dict[str, torch.Tensor],
) -> None:
    reference = {**gradient, "tiny": torch.full((200,), 1e-9)}
    candidate = {**gradient, "tiny": torch.full((200,), -3e-9)}
    assert bounds.errors(compare(candidate, reference))["tiny"] < 1e-6


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0005, 0.02), st.integers(0, 1000))
def test_noise_of_the_size_of_the_draws_passes(size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = {n: torch.randn(200, generator=generator) for n in "abc"}
    draws = [compare(noisy(gradient, size, seed + k), gradient) for k in range(1, 4)]
    found = compare(noisy(gradient, size, seed), gradient)
    checks = bounds.check_errors("gradient error", found, draws, BFLOAT16)
    assert all(check.passed for check in checks)


def test_ten_times_the_noise_is_refused(gradient: dict[str, torch.Tensor]) -> None:
    draws = [compare(noisy(gradient, 0.01, k), gradient) for k in range(3)]
    found = compare({**gradient, "b": noisy(gradient, 0.1, 9)["b"]}, gradient)
    failed = [
        c for c in bounds.check_errors("gradient error", found, draws, BFLOAT16) if not c.passed
    ]
    assert {c.worst for c in failed} == {"b"}
    assert (
        failed[0].line.startswith("gradient error 0.1") and "at `b`, allowed 0.0" in failed[0].line
    )


def test_a_gradient_that_points_elsewhere_is_refused_however_sensitive_the_model_is(
    gradient: dict[str, torch.Tensor],
) -> None:
    wild = [compare(noisy(gradient, 5.0, k), gradient) for k in range(3)]
    found = compare(noisy(gradient, 1.0, 9), gradient)
    assert any(not c.passed for c in bounds.check_errors("x", found, wild, BFLOAT16))


def test_the_scale_is_read_off_the_quietest_tensor(gradient: dict[str, torch.Tensor]) -> None:
    draws = []
    for k in range(3):
        moved = {**noisy(gradient, 0.2, k), "a": noisy(gradient, 0.001, k)["a"]}
        draws.append(compare(moved, gradient))
    weight = bounds.weights(draws)
    assert weight["a"] == 1 and weight["b"] < 1e-3
    found = compare({n: t * 1.01 for n, t in gradient.items()}, gradient)
    assert bounds.scale(found, weight) == pytest.approx(0.01, rel=1e-3)


@given(st.lists(st.floats(-0.01, 0.01), min_size=1, max_size=8))
def test_more_replays_narrow_the_bound(draws: list[float]) -> None:
    found = [bounds.scale_bound(draws, [0.001, -0.001] * n, BFLOAT16) for n in (4, 8, 12)]
    assert found == sorted(found, reverse=True) and found[-1] >= bounds.SCALE_FLOOR


def test_a_spread_that_rounding_cannot_explain_widens_nothing() -> None:
    quiet = [0.001, -0.001] * 8
    honest = bounds.scale_bound(quiet, [0.002, -0.002] * 4, BFLOAT16)
    wild = bounds.scale_bound(quiet, [0.5, -0.5] * 4, BFLOAT16)
    assert honest == BFLOAT16.unit  # which is always allowed
    assert honest < wild <= bounds.SCALE_ERRORS * BFLOAT16.unit / 8**0.5 + 1e-9


def test_only_draws_that_shorten_excuse_a_shorter_gradient() -> None:
    shorter = [-0.02 + 0.0002 * (-1) ** k for k in range(16)]
    same = [0.0002 * (-1) ** k for k in range(16)]
    assert bounds.check_scale(shorter, [-0.018] * 16, BFLOAT16).passed
    assert not bounds.check_scale(same, [-0.018] * 16, BFLOAT16).passed
    assert not bounds.check_scale(shorter, [0.01] * 16, BFLOAT16).passed
    # A candidate with a tenth of the draws' noise is excused a tenth of it.
    assert not bounds.check_scale(shorter, [-0.018] * 16, BFLOAT16, noise=0.1).passed


def test_holes_are_counted_among_entries_that_matter(gradient: dict[str, torch.Tensor]) -> None:
    holed = {n: t.clone() for n, t in gradient.items()}
    holed["b"][:6] = 0
    found = compare(holed, gradient)
    assert bounds.left_out(found) == pytest.approx(0.01, abs=0.002)
    check = bounds.check_lost(found, [0.0], [bounds.left_out(found)])
    assert not check.passed and check.worst == "b" and check.rank == 1


# --- roundings -----------------------------------------------------------------------------


def test_roundings_have_the_size_of_the_format() -> None:
    x = torch.randn(64, 64)
    with Rounding(BFLOAT16, 1):
        y = x @ x
    error = bounds.errors({"y": overall(compare({"y": y}, {"y": x @ x}))})["y"]
    assert BFLOAT16.unit / 4 < error < 2 * BFLOAT16.unit


def test_a_sum_errs_by_its_additions() -> None:
    """In the full format a long sum of equal terms is moved by about sqrt(n) units."""
    x = torch.ones(10_000)
    with Rounding(FLOAT32, 1):
        found = [float(x.sum()) / 10_000 - 1 for _ in range(20)]
    largest = max(abs(f) for f in found)
    assert 20 * FLOAT32.unit < largest <= 101 * FLOAT32.unit


def test_the_mean_that_a_batch_norm_subtracts_errs_as_one() -> None:
    """What remains of a bias before a batch norm is the error of that mean, times the entries."""
    torch.manual_seed(0)
    x = torch.randn(8, 4, 32, 32, requires_grad=True)
    g = torch.ones(8, 4, 32, 32) * (torch.rand(8, 4, 32, 32) < 0.5)
    left = []
    for seed in range(3):
        with Rounding(FLOAT32, seed):
            y = torch.nn.functional.batch_norm(x, None, None, training=True)
            (dx,) = torch.autograd.grad(y, x, g)
        sums = dx.double().sum((0, 2, 3))
        alone = FLOAT32.unit * dx.double().square().sum((0, 2, 3)).sqrt()
        left.append(float((sums / alone).abs().max()))
    assert max(left) > 30  # entries that err each alone would give about 1


def test_statistics_are_updated_once_under_rounding() -> None:
    norm = torch.nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5)
    with Rounding(FLOAT32, 1):
        norm(x)
    mean = norm.running_mean
    assert mean is not None and torch.allclose(mean, 0.1 * x.mean((0, 2, 3)), rtol=1e-4)


def test_roundings_leave_the_random_state_and_the_masks_alone() -> None:
    before = torch.get_rng_state()
    torch.manual_seed(3)
    mask = torch.nn.functional.dropout(torch.ones(100)) != 0
    torch.manual_seed(3)
    with Rounding(BFLOAT16, 1):
        moved = torch.nn.functional.dropout(torch.ones(100))
    assert torch.equal(moved != 0, mask)
    after = torch.get_rng_state()
    Noise(0.1, 5).moved(torch.ones(4))
    assert torch.equal(torch.get_rng_state(), after)
    torch.set_rng_state(before)


@pytest.mark.parametrize("unit", [BFLOAT16, FLOAT32])
def test_what_a_mask_has_made_infinite_stays_so(unit: Format) -> None:
    """Moved into something that isn't a number, it would count as no difference at all."""
    scores = torch.randn(16, 16).masked_fill(torch.ones(16, 16).tril() == 0, -math.inf)
    moved = Noise(unit.unit, 1).moved(scores)
    assert torch.equal(moved.isinf(), scores.isinf()) and not moved.isnan().any()
    with Rounding(unit, 1):
        y = torch.softmax(scores, -1) @ torch.randn(16, 4)
    assert y.isfinite().all()


_ON_CPU = coarsest([torch.bfloat16], "cpu")
_ON_CUDA = dataclasses.replace(_ON_CPU, device="cuda")


@pytest.mark.parametrize(
    ("function", "aten"),
    [
        (lambda x: torch.softmax(x, -1), "softmax.int"),
        (lambda x: torch.log_softmax(x, -1), "log_softmax.int"),
        (lambda x: x.exp(), "exp"),
        (lambda x: x.pow(3.0), "pow.Tensor_Scalar"),
        (lambda x: x.abs().rsqrt(), "rsqrt"),
    ],
)
def test_what_rounds_in_a_reduced_format_is_what_autocast_does_not_run_in_float32(
    function: Callable[[torch.Tensor], torch.Tensor], aten: str
) -> None:
    x = torch.randn(64, 64)
    y = function(x)
    with Rounding(_ON_CPU, 1):
        assert not torch.equal(function(x), y)
    with torch.autocast("cpu", torch.bfloat16):
        assert function(x.bfloat16()).dtype == torch.bfloat16
    if aten != "rsqrt":  # its argument rounds
        with Rounding(_ON_CUDA, 1):
            assert torch.equal(function(x), y)
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{aten}", "AutocastCUDA")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{aten}", "AutocastCPU")


def test_losses_run_in_float32_on_the_cpu_too() -> None:
    logits, target = torch.randn(64, 10), torch.randint(10, (64,))
    loss = torch.nn.functional.cross_entropy
    with Rounding(_ON_CPU, 1):
        moved = torch.nn.CrossEntropyLoss()(logits, target)
    assert torch.equal(moved, loss(logits, target))
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(logits.bfloat16(), target).dtype == torch.float32


def test_masks_in_a_reduced_format_keep_their_mean() -> None:
    x = torch.ones(100_000, dtype=torch.bfloat16)
    torch.manual_seed(0)
    plain = torch.nn.functional.dropout(x, 0.1)
    torch.manual_seed(0)
    with DitheredMasks(1):
        dithered = torch.nn.functional.dropout(x, 0.1)
    assert torch.equal(plain != 0, dithered != 0)
    kept = dithered[dithered != 0].double()
    assert set(kept.tolist()) == {1.109375, 1.1171875}
    assert float(plain.double().max()) == 1.109375 and abs(float(kept.mean()) * 0.9 - 1) < 1e-4


@pytest.mark.parametrize("size", [5, 17, 1000])
def test_random_numbers_are_the_same_in_every_format(size: int) -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        with SameDraws():
            x = torch.ones(size, dtype=dtype)
            found.append([torch.randn_like(x), torch.rand_like(x), x.clone().normal_()])
    for a, b in zip(*found, strict=True):
        assert b.dtype == torch.bfloat16 and torch.equal(a.bfloat16(), b)


@pytest.mark.parametrize("shape", [(2, 8, 5, 5), (2, 4, 3, 3, 3)])
def test_random_numbers_are_the_same_in_every_memory_order(shape: tuple[int, ...]) -> None:
    form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    found = []
    for memory_format in (torch.contiguous_format, form):
        torch.manual_seed(0)
        with SameDraws(wide=False, rows=True):
            x = torch.ones(shape).to(memory_format=memory_format)
            dropped = torch.nn.functional.dropout(x, 0.5)
            found.append(
                [dropped, torch.randn_like(x), x.clone().normal_(), torch.bernoulli(x / 2)]
            )
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b) and b.is_contiguous(memory_format=form)


def test_the_coarsest_format_counts() -> None:
    assert coarsest([torch.float32, None], "cpu").unit == FLOAT32.unit
    assert coarsest([torch.float32, torch.bfloat16], "cpu").unit == BFLOAT16.unit
    assert coarsest([torch.float64], "cpu").unit == FLOAT64.unit


# --- nested values --------------------------------------------------------------------------


def test_nested_values_are_rebuilt_with_shared_tensors_shared() -> None:
    x = torch.ones(2)
    value = {"a": (x, [x, 3]), "b": "text", "c": torch.Size([2])}
    twin = Rebuild(torch.clone)(value)
    assert twin["a"][0] is twin["a"][1][0] is not x
    assert twin["c"] == torch.Size([2]) and type(twin["a"]) is tuple
    assert list(tensors_in(value)) == ["['a'][0]"]


def test_a_packed_sequence_is_copied_as_what_it_is() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    twin = Rebuild(torch.clone)(packed)
    assert type(twin) is type(packed) and twin.data is not packed.data
    assert torch.equal(twin.batch_sizes, packed.batch_sizes)
