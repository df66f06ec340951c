"""Parts of the observers that see mistakes, without a script."""

from __future__ import annotations

import functools
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.instrument.observe.assigned import assigned
from hasten.instrument.observe.evaluation import _bytes_held
from hasten.instrument.observe.gradients import Ledger
from hasten.instrument.observe.loaders import Loaders
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.scaling import _scaled_by_hand
from hasten.instrument.observe.schedules import _numbers


def code_of(path: Path, source: str, function: str = "train") -> CodeType:
    path.write_text(source, encoding="utf-8")
    code = compile(source, str(path), "exec")
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == function)


@pytest.mark.parametrize(
    ("lines", "variable", "line"),
    [
        (["total = 0.0", "total += loss"], "total", 3),
        (["total = 0.0", "total += loss.item()", "total += loss"], "total", 4),
        (["total = torch.zeros(1)", "total = total + loss"], "total", 3),
        (["kept = []", "kept.append(loss)"], "kept[]", 3),
        (["kept = {}", "kept['loss'] = loss"], "kept[]", 3),
        (["self.total = 0", "self.total += loss"], "self.total", 3),
        (["out, state = model(x, state)"], "state", 2),
    ],
)
def test_the_line_that_gives_a_value(
    tmp_path: Path, lines: list[str], variable: str, line: int
) -> None:
    source = "def train(self, loss, model, x, state):\n" + "".join(
        f"    {text}\n" for text in lines
    )
    at = assigned(code_of(tmp_path / "script.py", source), variable)
    assert at is not None and at[1] == line


def test_an_attribute_that_another_class_adds_to(tmp_path: Path) -> None:
    meter = "class Meter:\n    def update(self, value):\n        self.sum += value\n\n"
    source = meter + "def train(m, loss):\n    m.update(loss)\n"
    at = assigned(code_of(tmp_path / "script.py", source), "m.sum")
    assert at is not None and at[1] == 3


def test_a_source_that_is_not_there() -> None:
    assert assigned(compile("x = 1", "nowhere.py", "exec"), "x") is None


def ledger_after(clear: str, accumulate: int = 1, steps: int = 8) -> dict:
    """What a ledger says of a tiny loop that clears its gradients at some place."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger = Ledger(optimizer)
    idle = False
    for number in range(steps * accumulate):
        if clear == "each" or (clear == "first" and number % accumulate == 0):
            optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        with torch.no_grad():
            ledger.before_backward(number, idle)
        loss.backward()
        with torch.no_grad():
            ledger.after_backward()
        idle = True
        if (number + 1) % accumulate:
            continue
        if clear == "between":
            optimizer.zero_grad()
        if clear == "half":
            model.weight.grad = None
        with torch.no_grad():
            ledger.before_step()
            optimizer.step()
            ledger.after_step()
        idle = False
        if clear == "by hand":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
    return ledger.facts({id(p): name for name, p in model.named_parameters()})


@pytest.mark.parametrize("clear", ["first", "by hand", "between"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_cleared_gradients_are_not_carried(clear: str, accumulate: int) -> None:
    facts = ledger_after(clear, accumulate)
    assert facts["carried"] == []
    assert facts["emptied"] == (8 if clear == "between" else 0)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_that_nobody_clears_are_carried(accumulate: int) -> None:
    facts = ledger_after("never", accumulate)
    assert facts["carried"] == ["weight", "bias"]
    assert facts["norms"][-1] > facts["norms"][0]


def test_only_what_is_not_cleared_is_carried() -> None:
    assert ledger_after("half")["carried"] == ["bias"]


def test_batches_that_were_in_vain_are_counted() -> None:
    assert ledger_after("each", 4)["windows"][1:] == [[4, 3]] * 7
    assert ledger_after("first", 4)["windows"][1:] == [[4, 0]] * 7


def test_numbers_of_a_schedule() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    total = 640

    def warm(step: int, warmup: int) -> float:
        return min(1.0, step / warmup) * (1 - step / total)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(warm, warmup=100))
    assert {100, 640} <= set(_numbers(schedule))

    class Linear:
        def __init__(self) -> None:
            self.steps = 55

        def __call__(self, step: int) -> float:
            return 1 - step / self.steps

    assert 55 in set(_numbers(torch.optim.lr_scheduler.LambdaLR(optimizer, Linear())))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=77)
    assert 77 in set(_numbers(cosine))


def test_a_loss_that_is_scaled_by_hand() -> None:
    loss = nn.Linear(2, 1)(torch.randn(3, 2)).mean()
    assert _scaled_by_hand(loss * 1024)
    assert _scaled_by_hand(loss * torch.tensor(1024.0))
    assert not _scaled_by_hand(loss)
    assert not _scaled_by_hand(loss / 4)
    assert not _scaled_by_hand(loss * 0.5)


def test_bytes_that_a_graph_holds() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    output = model(torch.randn(32, 8))
    # The input (a leaf of its own) and what ReLU returns; parameters don't count.
    assert _bytes_held(output.grad_fn, model) == 4 * (32 * 8 + 32 * 16)


def test_where_the_first_epoch_is_iterated_is_known_later() -> None:
    """It begins before anything has been trained, and may be the only one."""
    log, loaders = Log(), Loaders()
    training, other = (DataLoader(TensorDataset(torch.ones(4))) for _ in range(2))

    def conductor(loader: Any) -> None:
        loaders.epoch_started(log, loader, False)

    def script(loader: Any) -> None:
        conductor(loader)

    script(training)
    script(other)
    assert loaders.finish(log, None)["iterated"] is None
    loaders.fetched(log, training, None, True)
    found = loaders.finish(log, None)["iterated"]
    assert found["file"] == __file__ and found["code"] == "conductor(loader)"
