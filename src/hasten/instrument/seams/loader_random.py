"""The global random states: compare them, and put them back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch


def random_states() -> dict[str, Any]:
    """Those of torch, random and numpy, by name, as values that compare."""
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "random": random.getstate(),
        "numpy": (kind, bytes(numpy.asarray(keys)), *rest),
    }


@contextmanager
def preserved() -> Iterator[None]:
    """Put the global random states back afterwards."""
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])
