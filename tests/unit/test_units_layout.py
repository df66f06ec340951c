"""channels_last: the same training, other strides, and every stride back afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unit_loops import Images, Layers, furthest, plain, seamed

from hasten.environment import look
from hasten.optimisations import find

LAST = {"channels-last": True}
FUSED = {"fused-optimizer": "fused"}
#: What roundings may grow to in eighteen iterations; a wrong stride errs by 0.1 and more.
_ROUNDING = 2e-3


class Converted(Images):
    """What a user would have written: the model in channels_last, batches converted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.model.to(memory_format=torch.channels_last)

    def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().batch(index)
        return images.contiguous(memory_format=torch.channels_last), labels


def strides(training: Images) -> list[Any]:
    held = list(training.model.parameters())
    held += [p.grad for p in training.model.parameters() if p.grad is not None]
    state = training.optimizer.state
    held += [v for p in list(held) for v in state.get(p, {}).values() if _shaped(v, p)]
    return [t.stride() for t in held]


def _shaped(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


OPTIMIZERS = pytest.mark.parametrize(
    ("optimizer", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {"lr": 1e-3})],
    ids=["sgd", "adamw"],
)


@OPTIMIZERS
def test_the_same_training_as_a_model_that_was_converted_by_hand(
    optimizer: Any, options: dict[str, Any]
) -> None:
    with seamed(Images(optimizer, **options)) as ours:
        assert ours.run([LAST], each=6) == {}
        weights = ours.training.weights()
    assert furthest(weights, plain(Converted(optimizer, **options), 6)) < _ROUNDING


@OPTIMIZERS
@pytest.mark.parametrize("fused", [{}, FUSED], ids=["plain", "fused"])
def test_toggled_it_stays_the_same_training(
    optimizer: Any, options: dict[str, Any], fused: dict[str, Any]
) -> None:
    """State of old strides under fused would be silently wrong by a tenth and more."""
    training = Images(optimizer, **options)
    before = strides(training)
    with seamed(training) as ours:
        assert ours.run([fused, LAST | fused, fused, LAST, LAST | fused, {}]) == {}
        weights = ours.training.weights()
    assert furthest(weights, plain(Images(optimizer, **options), 18)) < _ROUNDING
    assert strides(training)[: len(before)] == before
    assert len(set(map(str, strides(training)))) == len(set(map(str, before)))


@OPTIMIZERS
def test_everything_has_the_strides_of_its_weight(optimizer: Any, options: dict[str, Any]) -> None:
    training = Images(optimizer, **options)
    with seamed(training) as ours:
        ours.run([{}, LAST])
        weight = training.model[0].weight
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert weight.grad is not None and weight.grad.stride() == weight.stride()
        state = training.optimizer.state[weight]
        assert all(v.stride() == weight.stride() for v in state.values() if _shaped(v, weight))
        ours.seams.apply({})
        assert weight.is_contiguous() and weight.grad.is_contiguous()


def test_the_model_is_fed_images_in_channels_last_and_gives_them_back_in_rows() -> None:
    seen: list[bool] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            seen.append(batch["x"].is_contiguous(memory_format=torch.channels_last))
            return {"y": self.conv(batch["x"])}

    class Nested(Images):
        def __init__(self) -> None:
            super().__init__()
            self.model = Looking()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.models, self.optimizers = [self.model], [self.optimizer]

        def step(self, index: int) -> None:
            images = self.batch(index)[0]
            out = self.model({"x": images})["y"]
            # A script may rely on rows: this raises for anything else.
            out.view(len(out), -1).square().mean().backward()
            self.optimizer.step()

    with seamed(Nested()) as ours:
        assert ours.run([{}, LAST, {}], each=1) == {}
    assert seen == [False, True, False]


def test_it_is_proven_on_the_model_and_on_the_steps() -> None:
    with seamed(Images(torch.optim.AdamW, lr=1e-3)) as ours:
        ours.run([{}])
        proof = ours.prove("channels-last")
    assert proof.passed and proof.numerics in ("exact", "rounding"), proof


@pytest.mark.parametrize("probability", [0.25, 0.5])
def test_masks_drawn_in_another_memory_order_are_no_error(probability: float) -> None:
    """Dropout of images is one mask, dropout of features another: only the first is reordered."""

    class Dropping(Images):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(
                nn.Conv2d(3, 8, 3),
                nn.ReLU(),
                nn.Dropout(probability),
                nn.Flatten(),
                nn.Linear(800, 16),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(16, 5),
            )
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.models, self.optimizers = [self.model], [self.optimizer]

    with seamed(Dropping()) as ours:
        ours.run([{}])
        proof = ours.prove("channels-last")
    assert proof.passed and proof.numerics == "rounding", proof


def test_a_view_of_a_convolution_raises_in_the_script_and_is_undone() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(400, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).view(len(x), -1))

    class Script(Images):
        def __init__(self) -> None:
            super().__init__()
            self.model = Viewing()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.models, self.optimizers = [self.model], [self.optimizer]

        def step(self, index: int) -> None:
            images, labels = self.batch(index)
            F.cross_entropy(self.model(images), labels).backward()

    training = Script()
    with seamed(training) as ours:
        ours.run([{}])
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            ours.run([LAST])
        assert not ours.prove("channels-last").passed
        ours.run([{}])
    assert training.model.conv.weight.is_contiguous()


def test_own_strides_come_back_exactly() -> None:
    """Also those of a weight that the script itself has laid out in some way of its own."""
    training = Images()
    odd = training.model[3].weight
    odd.data = odd.data.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
    before = strides(training)
    with seamed(training) as ours:
        ours.run([LAST, {}, LAST])
    assert strides(training)[: len(before)] == before


def test_reasons_against_it(make_profile: Any) -> None:
    unit, machine = find("channels-last"), look()
    with seamed(Layers()) as ours:
        assert ours.seams.roots[0].convolutions == 0
        assert "no module with convolutions" in ours.run([LAST])["channels-last"]
    assert unit.applies(make_profile(), machine).reason == (
        "the model has no two-dimensional convolution"
    )
    with seamed(Converted()) as ours:
        root = ours.seams.roots[0]
        assert (root.convolutions, root.converted) == (2, 2)
