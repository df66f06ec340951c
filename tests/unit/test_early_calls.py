"""Before the loop is known: calls in parts, and recomputed blocks, from the first one on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unit_loops import NoEvents, furthest

from hasten.instrument.seams.early import EarlyCalls
from hasten.instrument.seams.root import Root

PAD = 0


class Language(nn.Module):
    """torch's own transformer layers, with a mask of padding by sample."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(layer(16, 2, 32, dropout, batch_first=True) for _ in range(3))
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=tokens == PAD)
        logits: torch.Tensor = self.head(hidden)
        return logits


def gradients(model: nn.Module, between: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    """Of a loss weighted by tokens; parts of this batch hold different numbers of them."""
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 40, (11, 9), generator=draw)
    lengths = torch.randint(2, 10, (11, 1), generator=draw)
    tokens = tokens * (torch.arange(9) < lengths)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
    between()
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@contextmanager
def early(parts: int | None, every: int | None) -> Iterator[EarlyCalls]:
    """Seams as a process has them until its loop is known."""
    calls = EarlyCalls(parts, every)
    calls.install()
    try:
        yield calls
    finally:
        calls.uninstall()


def language(dropout: float = 0.0) -> Language:
    torch.manual_seed(0)
    return Language(dropout)


@pytest.mark.parametrize(("parts", "every"), [(4, None), (None, 1), (4, 1)])
def test_a_transformer_has_the_same_gradients(parts: int | None, every: int | None) -> None:
    """The inner modules of a call that is computed again are no calls to be trained."""
    whole = gradients(language())
    model = language()
    with early(parts, every):
        again = [gradients(model) for _ in range(2)]
    assert all(furthest(found, whole) < 2e-6 for found in again)
    if parts is None:
        assert furthest(again[1], whole) == 0.0


def test_the_loop_becomes_known_between_forward_and_backward() -> None:
    """Then the call is computed again as it was made, though the seam of roots is there by now."""
    whole = gradients(language())
    model = language()
    calls = EarlyCalls(4, None)
    calls.install()
    root = Root(model, True, NoEvents())

    def known() -> None:
        root.install()
        calls.uninstall()
        root.splitting.set(3)

    try:
        gradients(model)
        assert furthest(gradients(model, known), whole) < 2e-6
        assert furthest(gradients(model), whole) < 2e-6
        assert root.splitting.calls == 1, "and not what is computed again"
    finally:
        calls.uninstall()
        root.uninstall()


def test_recomputed_blocks_drop_the_same_again() -> None:
    whole = gradients(language(0.4))
    model = language(0.4)
    with early(None, 1):
        gradients(model)  # the first call is examined
        torch.manual_seed(0)
        language(0.4)  # draws as above
        again = gradients(model)
    assert furthest(again, whole) == 0.0
