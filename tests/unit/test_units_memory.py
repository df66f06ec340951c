"""Micro-batches and recomputed blocks: the same gradients, less memory, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unit_loops import Images, Training, furthest, plain, seamed

PARTS = {"micro-batches": 4}


class Fed(Training):
    """Any model on batches of its own, with a loss of the script's."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        batch: Callable[[torch.Generator], tuple[Any, ...]],
        loss: Callable[[Any, tuple[Any, ...]], torch.Tensor] | None = None,
        given: int = 1,
    ) -> None:
        torch.manual_seed(0)
        self.model, self._batch = model(), batch
        self._loss = loss or (lambda out, batch: F.mse_loss(out, batch[-1]))
        self._given = given
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.models, self.optimizers = [self.model], [self.optimizer]

    def step(self, index: int) -> Any:
        batch = self._batch(torch.Generator().manual_seed(index))
        self.optimizer.zero_grad()
        loss = self._loss(self.model(*batch[: self._given]), batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def vectors(generator: torch.Generator) -> tuple[Any, ...]:
    """Twenty-two samples, which four does not divide."""
    return torch.randn(22, 10, generator=generator), torch.randn(22, 4, generator=generator)


def pictures(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(12, 3, 8, 8, generator=generator), torch.randn(12, 5, generator=generator)


def convolutions() -> nn.Module:
    body = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class Language(nn.Module):
    """A transformer with a mask of padding by sample, and a causal one for all."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
        self.layers = nn.ModuleList([layer])
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor, *, causal: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=causal, src_key_padding_mask=tokens == 0)
        return {"logits": self.head(hidden)}


class Sentences(Fed):
    """Losses weighted by tokens: the mean over all tokens that are not padding."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(lambda: Language(dropout), sentences)

    def step(self, index: int) -> Any:
        (tokens,) = sentences(torch.Generator().manual_seed(index))
        causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
        logits = self.model(tokens[:, :-1], causal=causal)["logits"]
        self.optimizer.zero_grad()
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()


def sentences(generator: torch.Generator) -> tuple[torch.Tensor]:
    """Of one to eight tokens, so that parts hold different numbers of them."""
    tokens = torch.randint(1, 50, (10, 8), generator=generator)
    lengths = torch.randint(2, 9, (10, 1), generator=generator)
    return (tokens * (torch.arange(8) < lengths),)


class Recurrent(nn.Module):
    """Batch first, with the hidden state of the last step beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(10, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def sequences(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(9, 6, 10, generator=generator), torch.randn(9, 4, generator=generator)


HONEST: dict[str, Callable[[], Training]] = {
    "perceptron": lambda: Fed(perceptron, vectors),
    "convolutions": lambda: Fed(convolutions, pictures),
    "language": Sentences,
    "recurrent": lambda: Fed(Recurrent, sequences),
    "contrastive": lambda: Fed(
        perceptron, vectors, lambda out, _: (out @ out.T).logsumexp(1).mean()
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_the_same_training_in_parts(name: str) -> None:
    """Equal to float32 rounding after six steps, with parts turned on and off on the way."""
    with seamed(HONEST[name]()) as ours:
        assert ours.run([PARTS, {}, {"micro-batches": 3}], each=2) == {}
        weights = ours.training.weights()
    assert furthest(weights, plain(HONEST[name](), 6)) < 2e-5


@pytest.mark.parametrize("name", HONEST)
def test_it_is_proven_in_parts(name: str) -> None:
    with seamed(HONEST[name]()) as ours:
        proof = ours.prove("micro-batches", 4)
        assert proof.passed and proof.numerics in ("exact", "rounding"), proof
        assert ours.seams.roots[0].splitting.trouble == ""


def test_one_part_is_alive_at_a_time() -> None:
    """Bytes that autograd keeps from the forward pass on."""
    whole, parts = kept({}), kept(PARTS)
    assert parts < 0.5 * whole


def kept(setting: dict[str, int]) -> int:
    training = Fed(perceptron, vectors)
    with seamed(training) as ours:
        ours.run([setting], each=1)  # the first call is examined
        return saved(lambda: training.model(vectors(torch.Generator())[0]))


def saved(forward: Callable[[], Any]) -> int:
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(sizes.values())


class Odd(nn.Module):
    """A model with one habit that parts can't have."""

    def __init__(self, habit: str) -> None:
        super().__init__()
        self.layer, self.habit, self.calls = nn.Linear(10, 4), habit, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, extra: Any = None) -> Any:
        if self.habit == "in place":
            x += 1
        self.calls += self.habit == "counts"
        if self.habit == "buffer":
            self.seen += len(x)
        out = self.layer(x)
        kinds = {
            "loss": (out, out.square().mean()),
            "number": (out, len(x)),
            "statistic": (out, out.mean(0)),
        }
        return kinds.get(self.habit, out)


REFUSED = {
    "loss": "output[1] is a single number, computed from the whole batch (a loss?)",
    "number": "its outputs hold a number that belongs to the whole batch",
    "statistic": "output[1] has no batch dimension",
    "in place": "the model changes its input in place",
    "counts": "each call of the model changes `calls`",
    "buffer": "each call of the model changes `seen`",
}


@pytest.mark.parametrize("habit", REFUSED)
def test_what_cannot_be_split_is_called_as_a_whole(habit: str) -> None:
    def loss(out: Any, batch: tuple[Any, ...]) -> torch.Tensor:
        return F.mse_loss(out[0] if isinstance(out, tuple) else out, batch[-1])

    def make() -> Fed:
        return Fed(lambda: Odd(habit), vectors, loss)

    with seamed(make()) as ours:
        assert ours.run([PARTS], each=2) == {"micro-batches": REFUSED[habit]}
        weights, calls = ours.training.weights(), ours.training.models[0].calls
    plainly = make()
    assert furthest(weights, plain(plainly, 2)) == 0.0
    assert calls == plainly.model.calls, "trying left a trace"


def test_batch_norm_in_training_is_refused_and_frozen_is_not() -> None:
    with seamed(Images()) as ours:
        reason = ours.run([PARTS])["micro-batches"]
    assert reason == "the batch norm `1` computes with the batch as a whole"
    frozen = Images()
    frozen.model[1].eval()
    with seamed(frozen) as ours:
        assert ours.run([PARTS]) == {}


def test_a_hook_a_number_and_a_packed_sequence_are_refused() -> None:
    training = Fed(perceptron, vectors)
    training.model[1].register_forward_hook(lambda *_: None)
    with seamed(training) as ours:
        assert "a hook on `1`" in ours.run([PARTS])["micro-batches"]
    counted = Fed(lambda: Odd(""), lambda g: (vectors(g)[0], 22, vectors(g)[1]), given=2)
    with seamed(counted) as ours:
        assert "an argument is the number 22" in ours.run([PARTS])["micro-batches"]


def test_a_batch_that_is_unlike_the_first_goes_as_a_whole() -> None:
    """A last batch of one sample."""
    sizes = iter([22, 1, 22])

    def ragged(generator: torch.Generator) -> tuple[Any, ...]:
        size = next(sizes)
        return tuple(t[:size] for t in vectors(generator))

    with seamed(Fed(perceptron, ragged)) as ours:
        assert ours.run([PARTS]) == {}
        assert ours.seams.roots[0].splitting.calls == 2


def test_dropout_draws_other_numbers_and_is_told_so() -> None:
    with seamed(Sentences(dropout=0.3)) as ours:
        proof = ours.prove("micro-batches", 2)
    assert proof.numerics == "statistics" and not proof.passed, proof


def test_sequences_that_lie_first_are_not_taken_for_batches() -> None:
    """An RNN whose batch is the second dimension would be cut along time."""

    class Time(Recurrent):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(10, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0])

    def batch(generator: torch.Generator) -> tuple[Any, ...]:
        return torch.randn(9, 6, 10, generator=generator), torch.randn(9, 6, 4, generator=generator)

    with seamed(Fed(Time, batch)) as ours:
        assert not ours.prove("micro-batches", 3).passed


def test_recomputing_draws_again_what_was_drawn() -> None:
    """Also from Python's generator, which torch's checkpoint leaves alone."""

    class Lucky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(10, 4), nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x).tanh() if random.random() < 0.5 else self.other(x).sigmoid()

    random.seed(3)
    with seamed(Fed(Lucky, vectors)) as ours:
        for _ in range(8):
            ours.run([{"micro-batches": 2}], each=1)
        assert all(torch.isfinite(w).all() for w in ours.training.weights())


# --- repeated blocks ---------------------------------------------------------------------------


class Residual(nn.Module):
    """A block with batch norm and dropout: running statistics must move once."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.body(x))


def deep(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(*(Residual(dropout) for _ in range(6)), nn.Linear(10, 4))


@pytest.mark.parametrize("every", [1, 2])
def test_recomputed_blocks_train_to_the_bit(every: int) -> None:
    """With batch norm and dropout, and turned on and off on the way."""
    setting = {"checkpoint-blocks": every}
    torch.manual_seed(1)
    with seamed(Fed(lambda: deep(0.3), vectors)) as ours:
        assert ours.run([setting, {}, setting], each=3) == {}
        weights = ours.training.weights()
    assert furthest(weights, plain(Fed(lambda: deep(0.3), vectors), 9)) == 0.0


def test_recomputed_blocks_are_proven_and_keep_less() -> None:
    training = Fed(deep, vectors)
    with seamed(training) as ours:
        proof = ours.prove("checkpoint-blocks", 1)
        assert proof.passed and proof.numerics == "exact", proof
        whole = saved(lambda: training.model(vectors(torch.Generator())[0]))
        ours.run([{"checkpoint-blocks": 1}])
        assert saved(lambda: training.model(vectors(torch.Generator())[0])) < 0.5 * whole
        ours.seams.apply({})
        assert all("_compiled_call_impl" not in vars(m) for m in training.model)


def test_blocks_are_the_outermost_of_one_class() -> None:
    training = Fed(deep, vectors)
    with seamed(training) as ours:
        assert ours.seams.roots[0].blocks.found == 6
    with seamed(Fed(perceptron, vectors)) as ours:
        reason = ours.run([{"checkpoint-blocks": 1}])["checkpoint-blocks"]
    assert reason == "the model has no repeated blocks in a ModuleList or Sequential"


@pytest.mark.parametrize("habit", ["in place", "counts", "buffer"])
def test_blocks_with_a_habit_are_left_alone(habit: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.back = Odd(habit), nn.Linear(4, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.back(self.inner(x))

    def make() -> Fed:
        return Fed(lambda: nn.Sequential(nn.Linear(10, 10), Block(), Block()), vectors, zero)

    def zero(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return out.square().mean()

    with seamed(make()) as ours:
        reason = ours.run([{"checkpoint-blocks": 1}])["checkpoint-blocks"]
        weights = ours.training.weights()
    assert reason.startswith(("Block changes its input", "each call of Block changes"))
    assert furthest(weights, plain(make(), 3)) == 0.0
