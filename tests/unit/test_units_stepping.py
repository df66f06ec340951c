"""The compiled optimizer step, on a real compiler."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from unit_loops import Layers, furthest, plain, seamed

from hasten.environment import look
from hasten.instrument import patching
from hasten.optimisations import find

COMPILED = {"compiled-optimizer": True}

needs_compiler = pytest.mark.skipif(look().compiler is None, reason="no C++ compiler")
pytestmark = pytest.mark.filterwarnings("ignore")  # of inductor


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Compiled code and dynamo's limits are those of the process; so is what a test leaves."""
    yield
    if "torch._dynamo" in sys.modules:
        for patch in patching.active():
            if patch.owner is torch._dynamo.config:
                patching.restore(patch)
        torch._dynamo.reset()


class Scheduled(Layers):
    """With a schedule that is made before the first step, and one that may come later."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__(kind, **options)
        self.schedules = [torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)]

    def step(self, index: int) -> None:
        super().step(index)
        for schedule in self.schedules:
            schedule.step()


@needs_compiler
@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.AdamW], ids=["rmsprop", "adamw"])
def test_it_steps_as_the_script_does(kind: Any) -> None:
    """While the learning rate changes each time, with few compilations."""
    from torch._dynamo.utils import counters

    stepped: list[int] = []
    training = Scheduled(kind, lr=1e-3)
    training.optimizer.register_step_post_hook(lambda o, a, k: stepped.append(1))
    with seamed(training) as ours:
        before = counters["stats"]["unique_graphs"]
        assert ours.run([{}, COMPILED, {}, COMPILED], each=4) == {}
        graphs = counters["stats"]["unique_graphs"] - before
        assert ours.seams.optimizers[0].steps == 4  # since the last change
    weights = training.weights()
    assert furthest(weights, plain(Scheduled(kind, lr=1e-3), 16)) < 1e-5
    assert len(stepped) == 16
    assert isinstance(training.optimizer.param_groups[0]["lr"], float)
    assert 1 <= graphs <= 4
    assert hasattr(training.optimizer.step, "_wrapped_by_lr_sched")
    assert training.optimizer._opt_called


@needs_compiler
def test_what_the_script_does_with_its_optimizer_goes_on_working() -> None:
    training = Layers(torch.optim.RMSprop, lr=1e-3)
    with seamed(training) as ours:
        ours.run([COMPILED], each=2)
        pickle.loads(pickle.dumps(training.optimizer.state_dict()))
        twin = copy.deepcopy(training.optimizer)
        twin.step()
        # A scheduler wraps what it finds, also while ours is in its place.
        schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
        training.step(3)
        schedule.step()
        ours.seams.apply({})
        training.step(4)
    assert training.optimizer.param_groups[0]["lr"] == 5e-4
    reference = Layers(torch.optim.RMSprop, lr=1e-3)
    plain(reference, 2)
    reference.step(3)
    reference.optimizer.param_groups[0]["lr"] = 5e-4
    reference.step(4)
    assert furthest(training.weights(), reference.weights()) < 1e-5


@needs_compiler
def test_it_is_proven_on_copies_of_the_real_step() -> None:
    from torch._dynamo.utils import counters

    with seamed(Layers(torch.optim.RMSprop, lr=1e-3)) as ours:
        ours.run([{}])
        before = counters["frames"]["total"]
        proof = ours.prove("compiled-optimizer")
        assert counters["frames"]["total"] > before, "the copies stepped uncompiled"
    assert proof.passed, proof


def test_a_step_that_other_code_replaced_is_left_alone(make_profile: Any) -> None:
    training = Layers()
    training.optimizer.step = functools.partial(training.optimizer.step)  # as apex does
    with seamed(training) as ours:
        handle = ours.seams.optimizers[0]
        assert handle.compilable == "its step was replaced by other code"
    from dataclasses import replace

    facts = replace(make_profile().optimizers[0], compilable=handle.compilable)
    answer = find("compiled-optimizer").applies(make_profile(optimizers=(facts,)), look())
    assert answer.reason == "AdamW: its step was replaced by other code"


def test_a_step_that_takes_no_time_is_not_worth_compiling(make_profile: Any) -> None:
    quick = make_profile(phases={"optimizer": 0.001})
    reason = find("compiled-optimizer").applies(quick, look()).reason
    assert reason == "the optimizer's step is less than 3 % of an iteration"
