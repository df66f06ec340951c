"""Units that promise the same bits, on real small models: on, off, on, against plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from unit_loops import Branches, Images, Layers, Training, plain, same_bits, seamed

from hasten.environment import look
from hasten.instrument import patching
from hasten.instrument.seams.debugging import Debugging
from hasten.optimisations import find

NONE = {"grads-to-none": True}
TOGGLED: list[dict[str, Any]] = [{}, NONE, {}, NONE, {}]
DECAYING = {"momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("by_model", [False, True], ids=["optimizer", "module"])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(torch.optim.SGD, DECAYING), (torch.optim.AdamW, {}), (torch.optim.RMSprop, {})],
    ids=["sgd", "adamw", "rmsprop"],
)
@pytest.mark.parametrize("branches", [False, True], ids=["all", "some"])
def test_cleared_to_none_trains_to_the_same_bits(
    optimizer: Any, options: dict[str, Any], branches: bool, by_model: bool
) -> None:
    """Also where a layer is left out in some iterations, while momentum and decay go on."""

    def make() -> Layers:
        torch.manual_seed(3)
        model = Branches() if branches else None
        return Layers(optimizer, model, by_model, **options)

    with seamed(make()) as ours:
        assert ours.run(TOGGLED) == {}
        weights = ours.training.weights()
    assert same_bits(weights, plain(make(), 15))


def test_pausing_instead_of_zeros_would_differ() -> None:
    """The trap that the unit steps round: without its zeros the weights are others."""

    class Dropping(Layers):
        def step(self, index: int) -> Any:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(index)
            loss.backward()
            self.optimizer.step()
            return loss

    class Filling(Layers):
        def step(self, index: int) -> Any:
            self.optimizer.zero_grad(set_to_none=False)
            loss = self.loss(index)
            loss.backward()
            self.optimizer.step()
            return loss

    torch.manual_seed(3)
    dropping = plain(Dropping(model=Branches(), **DECAYING), 12)
    torch.manual_seed(3)
    assert not same_bits(dropping, plain(Filling(model=Branches(), **DECAYING), 12))


def test_gradients_are_none_while_on_and_zeros_again_when_off() -> None:
    training = Layers()
    with seamed(training) as ours:
        ours.run([{}])
        ours.seams.apply(NONE)
        training.optimizer.zero_grad(set_to_none=False)
        assert all(p.grad is None for p in training.model.parameters())
        ours.seams.apply({})
        assert all(p.grad is not None and not p.grad.any() for p in training.model.parameters())
    assert "zero_grad" not in vars(training.optimizer)
    assert not training.optimizer._optimizer_step_pre_hooks
    assert patching.active() == []


def test_a_script_that_clears_to_none_itself_is_told_so(make_profile: Any) -> None:
    class Modern(Layers):
        def step(self, index: int) -> Any:
            self.optimizer.zero_grad()
            self.loss(index).backward()
            self.optimizer.step()

    with seamed(Modern()) as ours:
        ours.seams.watch()
        ours.run([{}])
        ours.seams.unwatch()
        assert (ours.seams.clearing.filled, ours.seams.clearing.untouched) == (0, [])
        assert "not asked" in ours.run([NONE])["grads-to-none"]
    answer = find("grads-to-none").applies(make_profile(), look())
    assert answer.reason == "the script never fills gradients with zeros"


def test_a_parameter_that_is_left_out_is_named(make_profile: Any) -> None:
    with seamed(Layers(model=Branches())) as ours:
        ours.seams.watch()
        ours.run([{}], each=8)
        ours.seams.unwatch()
        clearing = ours.seams.clearing
        assert clearing.filled == 8
        assert clearing.untouched == ["often.weight", "often.bias"]
    profile = make_profile(zero_fills=1.0, untouched=clearing.untouched[0])
    assert (
        "`often.weight` gets no gradient" in find("grads-to-none").applies(profile, look()).reason
    )


def test_every_parameter_is_reached_in_a_plain_model() -> None:
    """Clipping writes to all gradients and must not be taken for a backward pass."""
    with seamed(Layers(**DECAYING)) as ours:
        ours.seams.watch()
        ours.run([{}])
        ours.seams.unwatch()
        assert ours.seams.clearing.untouched == []


# --- debugging aids ------------------------------------------------------------------------------


class Watchful(Images):
    """A script with anomaly detection round each iteration."""

    def step(self, index: int) -> torch.Tensor:
        with torch.autograd.detect_anomaly():
            return super().step(index)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("everywhere", [False, True], ids=["round each", "for all"])
def test_anomaly_detection_off_and_on_again(everywhere: bool) -> None:
    make: type[Images] = Images if everywhere else Watchful
    off = {"debug-off": ["anomaly"]}
    seen = []
    try:
        torch.autograd.set_detect_anomaly(everywhere)
        with seamed(make()) as ours:
            set_by_script = torch.set_anomaly_enabled
            for setting in ({}, off, {}, off, {}):
                assert ours.run([setting], begin=3 * len(seen)) == {}
                really = patching.original(torch, "is_anomaly_enabled")()
                seen.append((really, torch.is_anomaly_enabled()))
            weights = ours.training.weights()
        assert torch.set_anomaly_enabled is set_by_script
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert seen == [(on, everywhere) for on in (everywhere, False, everywhere, False, everywhere)]
    assert same_bits(weights, plain(make(), 15))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_nan_passes_while_it_is_off() -> None:
    """It did something: the same backward pass raises when anomaly detection is on."""

    def backward() -> None:
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()

    with seamed(Images()) as ours:
        ours.seams.apply({"debug-off": ["anomaly"]})
        with torch.autograd.detect_anomaly():
            backward()
        ours.seams.apply({})
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
            backward()


def test_a_profiler_pauses() -> None:
    if not hasattr(torch._C._autograd, "_toggle_collection_dynamic"):
        pytest.skip("this torch can't pause a profiler")
    activities = [torch.profiler.ProfilerActivity.CPU]
    counts = []
    for off in ([], ["profiler"]):
        with seamed(Images()) as ours, torch.profiler.profile(activities=activities) as profiler:
            ours.run([{"debug-off": off} if off else {}], each=4)
            ours.seams.apply({})
        counts.append(sum(event.name == "aten::convolution" for event in profiler.events()))
    assert counts[0] == 8
    assert counts[1] <= 2  # the toggle itself may let one pass


def test_gradient_checks_are_seen_and_left_out() -> None:
    debugging, called = Debugging(), []

    class Checking(Layers):
        def step(self, index: int) -> Any:
            x = torch.randn(2, dtype=torch.float64, requires_grad=True)
            torch.autograd.gradcheck(lambda t: called.append(1) or t * 2, (x,))
            return super().step(index)

    debugging.install()
    training: Training = Checking()
    try:
        with seamed(training) as ours:
            ours.seams.debugging = debugging
            ours.run([{}], each=1)
            assert debugging.seen == {"gradcheck"} and called
            called.clear()
            assert ours.run([{"debug-off": ["gradcheck"]}], each=1) == {}
            assert not called
            debugging.uninstall()  # as at the end of a plan's application: it stays
            ours.run([{"debug-off": ["gradcheck"]}], each=1)
            assert not called
    finally:
        debugging.uninstall()
    assert patching.active() == []


def test_nothing_is_on_in_a_plain_script(make_profile: Any) -> None:
    answer = find("debug-off").applies(make_profile(), look())
    assert answer.reason == "no anomaly detection, profiler or gradient check is on"


def test_a_module_whose_parameters_nobody_steps_keeps_its_zeros() -> None:
    training = Layers()
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    with seamed(training) as ours:
        ours.run([{}, NONE])
        other.zero_grad(set_to_none=False)
        assert all(p.grad is not None and not p.grad.any() for p in other.parameters())


def test_fewer_workers_than_the_script_has_are_tried(make_profile: Any) -> None:
    """Too many workers need no unit of their own."""
    from dataclasses import replace

    loader, machine = make_profile().loader, replace(look(), usable_cores=2.0)
    many = make_profile(loader=replace(loader, workers=8, prefetch=2))
    values = find("loader-workers").applies(many, machine).values
    assert {value["workers"] for value in values} == {0, 1, 2}
