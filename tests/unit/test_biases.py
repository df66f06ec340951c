"""Biases before a batch norm are found, and those that do something are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from hasten.instrument.observe.alternatives import alternatives
from hasten.instrument.observe.arithmetic import Captured
from hasten.instrument.observe.biases import Biases, unbiased
from hasten.instrument.observe.functions import watch

IMAGES = torch.randn(4, 3, 8, 8)


def call(module: nn.Module, given: torch.Tensor) -> tuple[Any, Captured]:
    root = SimpleNamespace(module=module, own_compile=False, graphs=(0, 0, 0), device="cpu")
    captured = Captured()
    captured(cast(Any, root), lambda *args: None, (given,), {})
    return root, captured


def found(module: nn.Module, given: torch.Tensor = IMAGES) -> Biases:
    watcher = Biases()
    assert watch(*call(module, given), [watcher])
    return watcher


def test_a_bias_before_a_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 5, 3), nn.ReLU())
    ((layer, count),) = found(model).layers
    assert count == 1 and layer.args[1] is not model[0].weight  # of a copy
    one = unbiased(layer)()
    apart = one.as_is() - one.instead()
    torch.testing.assert_close(apart, layer.args[2].view(1, -1, 1, 1).expand_as(apart))


def test_alike_layers_are_timed_once() -> None:
    parts = [(nn.Linear(6, 6), nn.BatchNorm1d(6)) for _ in range(3)]
    model = nn.Sequential(*(part for pair in parts for part in pair))
    (entry,) = alternatives([call(model, torch.randn(8, 6))], 0.05)["biases"]
    assert entry["times"] == 3 and entry["layer"] == "linear"


class Residual(nn.Module):
    """The result goes somewhere else as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        result: torch.Tensor = x + self.norm(x)
        return result


class Returned(Residual):
    def forward(self, x: torch.Tensor) -> Any:
        x = self.layer(x)
        return self.norm(x), x


HEALTHY = {
    "no bias": nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5)),
    "evaluation": nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5).eval()),
    "no norm": nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.BatchNorm2d(5)),
    "layer norm": nn.Sequential(nn.Conv2d(3, 5, 3), nn.GroupNorm(1, 5)),
    "added": Residual(),
    "returned": Returned(),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_biases_that_do_something(name: str) -> None:
    assert not found(HEALTHY[name]).layers
