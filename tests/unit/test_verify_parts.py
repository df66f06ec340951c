"""The parts of following a training: seeds, the ledger, facts, and checkpoints as the script's."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_proof_zoo import NoEvents
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.instrument import patching
from hasten.instrument.seams.loader_random import preserved
from hasten.instrument.seams.optimizer import OptimizerHandle
from hasten.instrument.seams.root import Root
from hasten.instrument.verify import facts
from hasten.instrument.verify.ledger import BACKWARD, BATCH, PASS, STEP, Batch, Ledger
from hasten.instrument.verify.movement import Movement
from hasten.instrument.verify.seeding import Seeding

# --- seeds -------------------------------------------------------------------------------------


@pytest.fixture
def seeded() -> Iterator[Any]:
    """Begins a pair's seeding; everything is put back."""

    def begin(pair: int) -> Seeding:
        patching.restore_all()
        seeding = Seeding(pair)
        seeding.begin()
        return seeding

    with preserved():
        yield begin
        patching.restore_all()


def draws() -> tuple[float, ...]:
    new = np.random.default_rng().random()
    return random.random(), float(np.random.rand()), torch.rand(1).item(), float(new)


def test_a_script_that_seeds_nothing(seeded: Any) -> None:
    one, again, other = ((seeded(pair), draws())[1] for pair in (0, 0, 1))
    assert one == again
    assert all(a != b for a, b in zip(one, other, strict=True))


def own_seeds() -> tuple[Any, ...]:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    return draws()[:3]


def test_a_script_that_seeds_itself(seeded: Any) -> None:
    plain = own_seeds()
    first, second, again = ((seeded(pair), own_seeds())[1] for pair in (0, 2, 2))
    assert first == plain, "the first pair is the script as it is"
    assert second == again
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert list(seeded(1).moved) == []
    seeding = seeded(1)
    own_seeds()
    assert list(seeding.moved) == ["random.seed", "numpy.random.seed", "torch.manual_seed"]


@pytest.mark.parametrize("seed", ["name", b"bytes", 2**40, 1.5])
def test_seeds_of_other_kinds(seeded: Any, seed: Any) -> None:
    seeded(3)
    random.seed(seed)
    one = random.random()
    random.seed(seed)
    assert random.random() == one
    np.random.seed([1, 2])
    np.random.seed(seed=7)
    random.seed(a=7, version=2)
    random.seed()
    assert isinstance(torch.seed(), int)


def test_generators_that_choose_the_data_stay(seeded: Any) -> None:
    plain = np.random.default_rng(3).random(), random.Random(3).random()
    seeded(4)
    assert (np.random.default_rng(3).random(), random.Random(3).random()) == plain


def test_the_generator_of_a_loader_is_moved_once(seeded: Any) -> None:
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(TensorDataset(torch.arange(4)), shuffle=True, generator=generator)
    seeding = seeded(1)
    seeding.loader(loader)
    moved = generator.initial_seed()
    assert moved != 7
    seeding.loader(loader)
    assert generator.initial_seed() == moved
    seeded(0).loader(loader)
    assert generator.initial_seed() == moved


# --- the ledger --------------------------------------------------------------------------------


def batch(*indices: int) -> Batch:
    return Batch(len(indices), None, str(indices), indices)


def test_what_came_before_the_loop_was_known_is_counted() -> None:
    known = [False]
    ledger = Ledger(
        lambda kind, source: (kind == BATCH and source == "train") if known[0] else None
    )
    ledger.event(BATCH, "train", batch(1, 2))
    ledger.event(BACKWARD, None, torch.tensor(2.0))
    ledger.event(STEP, "sgd", (0.1,))
    ledger.event(BATCH, "validation", batch(9))
    assert ledger.rows == []
    known[0] = True
    ledger.event(BATCH, "train", batch(4, 3))
    ledger.event(BACKWARD, None, torch.tensor(1.0))
    ledger.event(BACKWARD, None, torch.tensor(3.0))
    ledger.event(PASS, "train")
    one, two = (row.counted() for row in ledger.rows)
    assert (one.loss, one.samples, one.steps, one.rates) == (2.0, 2, 1, (0.1,))
    assert (two.loss, two.backwards, two.steps) == (2.0, 2, 0)
    assert [(e.samples, e.distinct) for e in ledger.epochs] == [(4, 4)]


def test_an_abandoned_epoch_is_no_epoch() -> None:
    ledger = Ledger(lambda kind, source: kind == BATCH)
    ledger.event(BATCH, 0, batch(1))
    ledger.abandon()
    ledger.event(BATCH, 0, batch(1, 1))
    ledger.event(PASS, 0)
    assert [(e.samples, e.distinct) for e in ledger.epochs] == [(2, 1)]


# --- facts -------------------------------------------------------------------------------------


def test_samples_and_tokens() -> None:
    ids = torch.ones(4, 7, dtype=torch.long)
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[:, 5:] = 0
    assert facts.samples((torch.zeros(5, 3), torch.zeros(5))) == 5
    assert facts.samples(["a", "b"]) == 2 and facts.samples(3) is None
    assert facts.tokens({"input_ids": ids, "attention_mask": mask}) == 20
    assert facts.tokens({"input_ids": ids}) == facts.tokens((ids, torch.zeros(4))) == 28
    assert facts.tokens((torch.zeros(4, 7), torch.zeros(4))) is None


def test_how_far_parameters_move() -> None:
    """What has no gradient, what moves by rounding alone, and what stands still."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.Linear(4, 4)]
    model = nn.Sequential(*layers)
    model[4].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    roots = [Root(model, True, NoEvents())]
    movement = Movement()
    movement.mark(roots)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        if step == 5:
            model[0].bias.grad.fill_(1e-5)  # as large as the rounding of a reduced format
        movement.before_step(optimizer)
        optimizer.step()
    assert movement.still(roots) == ["4.weight", "4.bias"]
    assert movement.without_gradient(roots) == ["4.weight", "4.bias"]
    assert movement.slight(roots) == ["0.bias"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_every_bit_of_a_parameter_counts(dtype: torch.dtype) -> None:
    parameter = torch.randn(6, 5).to(dtype)
    before = facts.bits(parameter)
    assert facts.bits(parameter.clone()) == before
    changed = parameter.clone()
    changed[3, 2] *= 1.01 if dtype == torch.bfloat16 else 1 + 1e-5
    assert facts.bits(changed) != before
    if not dtype.is_complex:
        assert facts.bits(parameter.flip(0)) != before, "entries that changed places"
        assert facts.bits(parameter.t().contiguous().t()) == before, "another layout is no change"


def test_names_in_what_is_saved() -> None:
    model = nn.Linear(2, 1)
    found = facts.saved_keys({"model": model.state_dict(), "epoch": 3, "whole": model})
    assert found == ["model.weight", "model.bias", "epoch", "whole.weight", "whole.bias"]


# --- checkpoints -------------------------------------------------------------------------------


def trained(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 3, 6, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    model(torch.randn(4, 3, 6, 6)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_checkpoints_hold_the_scripts_own_flags() -> None:
    _, optimizer = trained()
    handle = OptimizerHandle(optimizer)
    own = optimizer.state_dict()["param_groups"]
    handle.implementation("fused")
    assert optimizer.param_groups[0]["fused"] is True
    assert optimizer.state_dict()["param_groups"] == own
    assert optimizer.param_groups[0]["fused"] is True, "what is in force stays"
    handle.implementation(None)
    assert not optimizer._optimizer_state_dict_post_hooks, "no hook is left"


def test_checkpoints_hold_state_in_the_scripts_own_layout() -> None:
    model, optimizer = trained(fused=True)
    handle = OptimizerHandle(optimizer)
    weight = model[0].weight
    own = weight.stride()
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    handle.realign()
    assert optimizer.state[weight]["exp_avg"].stride() == weight.stride() != own
    saved = optimizer.state_dict()["state"][0]
    assert saved["exp_avg"].stride() == own
    assert torch.equal(saved["exp_avg"], optimizer.state[weight]["exp_avg"])
    assert optimizer.state[weight]["exp_avg"].stride() == weight.stride(), "what is in force stays"
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    assert b"hasten" not in file.getvalue()
    weight.data = weight.data.contiguous()
    handle.realign()
    assert not optimizer._optimizer_state_dict_post_hooks
