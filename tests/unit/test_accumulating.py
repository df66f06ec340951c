"""What lies between two steps of an optimizer, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hasten.diagnosis import Observed, Spread
from hasten.environment import look
from hasten.findings import Diagnosis, discover
from hasten.instrument.observe.accumulating import Accumulating, mean_of
from hasten.instrument.observe.log import Log

Make = Callable[..., Any]
_NOTHING = Spread(0.0, 0.0, 0.0, 0.0)


class Script:
    """A training loop that tells an observer what a conductor would."""

    def __init__(self) -> None:
        self.log, self.observer, self.number = Log(), Accumulating(), 0

    def epoch(self, batches: int) -> Iterator[int]:
        self.observer.epoch_started(self.log, None, True)
        for index in range(batches):
            self.observer.fetched(self.log, None, None, True)
            self.number += 1
            yield index

    def backward(self, loss: torch.Tensor) -> None:
        self.observer.before_backward(self.log, loss)
        loss.backward()
        self.observer.after_backward(self.log, loss)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.observer.before_step(self.log, optimizer)
        optimizer.step()

    def facts(self) -> dict[str, Any]:
        return self.observer.finish(self.log, None)


def summaries(make: Make, name: str, facts: dict[str, Any]) -> list[str]:
    """What a finding says about these facts."""
    observed = Observed(
        *(9, _NOTHING, _NOTHING, {}, (), (), (), 0.0, (), 1.0, 9, 9),
        facts={"accumulation": facts},
    )
    diagnosis = Diagnosis(make(), look(), observed)
    return [found.summary for found in discover()[name].look(diagnosis)]


def trained(border: str, accumulate: int = 4, epochs: int = 6) -> dict[str, Any]:
    """Epochs of ten batches, whose last two are left over."""
    script, model = Script(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        if border == "cleared":
            optimizer.zero_grad()
        for index in script.epoch(10):
            target = torch.tensor([0, 1])
            loss = F.cross_entropy(model(torch.randn(2, 4)), target)
            share = accumulate
            if border == "counted" and index >= 8:
                share = 2
            script.backward(loss / share)
            count = script.number if border == "over" else index + 1
            if count % accumulate == 0 or (border in ("small", "counted") and index == 9):
                script.step(optimizer)
                optimizer.zero_grad()
    return script.facts()


@pytest.mark.parametrize(
    ("border", "says"),
    [
        ("carried", "the last 2 batches of an epoch are added to the first update of the next"),
        ("cleared", "the last 2 batches of an epoch are never used"),
        ("small", "the last update of an epoch holds 2 of 4 batches, and is divided by 4"),
        ("counted", ""),
        ("over", ""),
    ],
)
def test_what_is_left_of_an_epoch(make_profile: Make, border: str, says: str) -> None:
    said = summaries(make_profile, "last-window", trained(border))
    assert len(said) == bool(says)
    assert not says or said[0].startswith(says)


def sentences(weigh: str) -> dict[str, Any]:
    """Two batches an update, of one to eight words."""
    script, model = Script(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in script.epoch(24):
        words = (1, 8)[index % 2]
        target = torch.randint(3, (2, 8))
        target[:, words:] = -100
        logits = model(torch.randn(2, 8, 4)).transpose(1, 2)
        if weigh == "sum":
            loss = F.cross_entropy(logits, target, reduction="sum") / 18
        else:
            loss = F.cross_entropy(logits, target)
            loss = loss / 2 if weigh == "mean" else loss * (2 * words / 18)
        script.backward(1024.0 * loss)  # as a scaler does
        if index % 2:
            script.step(optimizer)
            optimizer.zero_grad()
    return script.facts()


def test_tokens_that_weigh_more_than_others(make_profile: Make) -> None:
    (said,) = summaries(make_profile, "unequal-micro-batches", sentences("mean"))
    assert said.endswith("some targets weigh 8.0 times as much as others")
    for right in ("sum", "share"):
        assert not summaries(make_profile, "unequal-micro-batches", sentences(right))


def test_the_batches_of_another_optimizer_do_not_count(make_profile: Make) -> None:
    """A generator that is trained with every third batch accumulates nothing."""
    script, critic, generator = Script(), nn.Linear(4, 1), nn.Linear(4, 4)
    first = torch.optim.SGD(critic.parameters(), lr=0.1)
    second = torch.optim.SGD(generator.parameters(), lr=0.1)
    for _ in range(4):
        for index in script.epoch(10):
            first.zero_grad()
            script.backward(critic(torch.randn(2, 4)).mean())
            script.step(first)
            if index % 3 == 2:
                second.zero_grad()
                script.backward(critic(generator(torch.randn(2, 4))).mean())
                script.step(second)
    facts = script.facts()
    assert all({w["batches"] for w in one["windows"]} == {1} for one in facts["optimizers"])
    assert not summaries(make_profile, "last-window", facts)


def test_means_that_are_not_known() -> None:
    model, target = nn.Linear(4, 3), torch.tensor([0, 1])
    mean = F.cross_entropy(model(torch.randn(2, 4)), target)
    weighted = F.cross_entropy(model(torch.randn(2, 4)), target, torch.tensor([1.0, 3.0, 1.0]))
    found = mean_of(weighted / 4)
    assert found is not None and float(found[1]) == 4.0
    assert mean_of(mean + weighted) is None, "what a sum is made of can't be told"
    assert mean_of(F.cross_entropy(model(torch.randn(2, 4)), target, reduction="sum")) is None
    assert mean_of(F.mse_loss(model(torch.randn(2, 4)), torch.zeros(2, 3))) is None
    assert mean_of(torch.zeros(())) is None


@contextmanager
def hooked(script: Script) -> Iterator[None]:
    script.observer.start(script.log)
    try:
        yield
    finally:
        script.log.restore()


@pytest.mark.parametrize("right", [True, False])
def test_a_scaler_at_each_batch(make_profile: Make, right: bool) -> None:
    script, model = Script(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with hooked(script):
        for index in script.epoch(40):
            script.backward(scaler.scale(model(torch.randn(2, 4)).square().mean() / 4))
            last = index % 4 == 3
            if last or not right:
                scaler.unscale_(optimizer)
            if last:
                script.observer.before_step(script.log, optimizer)
                scaler.step(optimizer)
                optimizer.zero_grad()
            if last or not right:
                scaler.update()
    said = summaries(make_profile, "scaler-per-micro-batch", script.facts())
    assert bool(said) is not right


def test_a_script_that_does_not_accumulate(make_profile: Make) -> None:
    facts = trained("carried", accumulate=1)
    assert facts["optimizers"][0]["windows"]
    for name in ("last-window", "unequal-micro-batches", "scaler-per-micro-batch"):
        assert not summaries(make_profile, name, facts)
