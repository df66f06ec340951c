"""`hasten.tune` and `hasten.applied` in one process: found, undone, and in force when asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hasten
from hasten.errors import HastenError
from hasten.plan import Plan


def make(epochs: int = 100, width: int = 64):
    """A training function, and what it leaves behind of its last call."""
    left: dict[str, object] = {}

    def train() -> None:
        torch.manual_seed(0)
        x, y = torch.randn(256, width), torch.randint(0, 4, (256,))
        loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        left.update(model=model, optimizer=optimizer, ended=False, formats=set())
        try:
            for _ in range(epochs):
                for inputs, labels in loader:
                    optimizer.zero_grad(set_to_none=False)
                    out = model(inputs)
                    left["formats"].add(out.grad_fn.name())
                    loss = nn.functional.cross_entropy(out, labels)
                    loss.backward()
                    optimizer.step()
            left["ended"] = True
        finally:
            left["finally"] = True

    return train, left


def weights(left: dict[str, object]) -> list[torch.Tensor]:
    return [p.detach().clone() for p in left["model"].parameters()]


def test_a_function_is_tuned_and_everything_undone(tmp_path) -> None:
    train, left = make(epochs=400)
    skip = ("compile", "compiled-optimizer")  # torch's compiler leaves variables behind
    plan = hasten.tune(train, budget=6, output=tmp_path / "plan.toml", skip=skip)
    assert not left["ended"] and left["finally"]  # left in the middle, through its finally
    assert any(row.pairs for row in plan.evidence)
    assert (tmp_path / "plan.toml").exists()
    assert left["model"]._compiled_call_impl is None


def test_a_candidate_that_breaks_the_model_does_not_break_the_training() -> None:
    """What channels_last makes of a `view` is an exception, found by the proof before a block."""
    calls: list[int] = []

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 14 * 14, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).view(x.size(0), -1))

    def train() -> None:
        calls.append(1)
        model = Viewing()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))
        for _ in range(400):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    plan = hasten.tune(train, budget=2, only=("channels-last",))
    assert calls and plan.setting == {}
    (row,) = plan.evidence
    assert (row.verdict, row.pairs) == ("refused", 0) and "view" in row.reason


def test_a_short_function_is_called_again() -> None:
    train, left = make(epochs=12)
    calls = []

    def counted() -> None:
        calls.append(1)
        train()

    plan = hasten.tune(counted, budget=4, only=("fused-optimizer",))
    assert left["finally"] and len(calls) > 1
    assert {row.name for row in plan.evidence} <= {"fused-optimizer"}


def test_a_plan_is_in_force_inside_the_block_only() -> None:
    train, left = make(epochs=3)
    train()
    before = weights(left)
    with hasten.applied({"fused-optimizer": "fused", "amp-bf16": True}):
        train()
    assert "ToCopyBackward0" in left["formats"]
    assert left["optimizer"].param_groups[0]["fused"] is None  # as the script had it
    train()
    assert "ToCopyBackward0" not in left["formats"]
    assert all(torch.equal(a, b) for a, b in zip(before, weights(left), strict=True))


def test_an_exact_plan_trains_to_the_same_bits() -> None:
    train, left = make(epochs=3)
    train()
    before = weights(left)
    with hasten.applied({"grads-to-none": True}):
        train()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(left), strict=True))


def test_what_cannot_be_tuned_or_applied_is_said() -> None:
    with pytest.raises(HastenError, match="without a backward pass"):
        hasten.tune(lambda: None, budget=2)
    with pytest.raises(HastenError, match="no optimisation is called"), hasten.applied({"x": 1}):
        pass
    with pytest.raises(HastenError, match="wants"), hasten.applied({"threads": -1}):
        pass


class Noisy(Dataset):
    """Items with noise of the process that makes them."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.rand(4)


def items(setting: dict[str, object], item_seeds: bool) -> list[torch.Tensor]:
    """All batches of two epochs under a plan."""
    seen: list[torch.Tensor] = []

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = DataLoader(Noisy(), 4, num_workers=0)
        for _ in range(2):
            for batch in loader:
                seen.append(batch)
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()

    with hasten.applied(Plan("train", (), dict(setting), item_seeds=item_seeds)):
        train()
    return seen


def test_items_are_seeded_where_the_plan_says_so() -> None:
    workers = {"loader-workers": {"workers": 1}}
    seeded, spread = items({}, True), items(workers, True)
    assert len(seeded) == len(spread) == 16
    assert all(torch.equal(a, b) for a, b in zip(seeded, spread, strict=True))
    plain = items({}, False)
    assert not any(torch.equal(a, b) for a, b in zip(seeded, plain, strict=True))


def test_a_plan_remembers_that_items_were_seeded() -> None:
    train, _ = make(epochs=60)
    plan = hasten.tune(train, budget=0.5, only=("grads-to-none",), item_seeds=True)
    assert plan.item_seeds
