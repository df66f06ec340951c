"""`hasten.diagnose` in one process: what a script would be told, and everything undone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hasten
from hasten.errors import HastenError


def make(epochs: int, wrong: bool = True):
    """A training function that never puts its gradients back to zero."""
    calls: list[bool] = []

    def train() -> None:
        torch.manual_seed(0)
        calls.append(False)
        x, y = torch.randn(256, 64), torch.randint(0, 4, (256,))
        loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for inputs, labels in loader:
                if not wrong:
                    optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        calls[-1] = True

    return train, calls


def test_a_function_is_diagnosed_and_everything_undone() -> None:
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # torch wraps `step` of a class when it is first made
    backward, step = torch.Tensor.backward, torch.optim.SGD.step
    train, calls = make(epochs=100_000)
    found = hasten.diagnose(train, budget=4)
    assert calls == [False]  # left in the middle
    assert "zero-grad-missing" in {v.finding.name for v in found.verdicts}
    assert (torch.Tensor.backward, torch.optim.SGD.step) == (backward, step)
    report = repr(found)
    assert "zero-grad-missing: " in report and "test_notebook_diagnosis.py:" in report
    assert max(map(len, report.splitlines())) <= 80 and "shield" not in report
    assert found.document()["phases"]["forward"] > 0
    assert found.diagnosis.observed.startup_seconds < 30


def test_a_short_function_is_called_again() -> None:
    train, calls = make(epochs=4, wrong=False)
    found = hasten.diagnose(train, budget=4)
    assert len(calls) > 1 and found.diagnosis.observed.iterations >= 10
    assert "zero-grad-missing" not in {v.finding.name for v in found.verdicts}


def test_what_does_not_train_is_told() -> None:
    with pytest.raises(HastenError, match="without a backward pass"):
        hasten.diagnose(lambda: None, budget=2)
    with pytest.raises(HastenError, match="ended after"):
        hasten.diagnose(_five, budget=2)


def _five() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_the_function_raises_comes_out(error: type[BaseException]) -> None:
    train, _ = make(epochs=3)

    def fails() -> None:
        train()
        raise error("own")

    with pytest.raises(error, match="own"):
        hasten.diagnose(fails, budget=20)
