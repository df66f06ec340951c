"""Patches: each can be undone, in any order, and what was absent is absent again."""

from __future__ import annotations

import inspect
import pickle
import types

import pytest
import torch

from hasten.instrument import patching
from hasten.instrument.conductor import Conductor
from hasten.instrument.programs import observe


class Base:
    def call(self) -> str:
        return "base"


class Derived(Base):
    pass


def test_replace_and_restore() -> None:
    module = types.ModuleType("m")
    module.f = 1  # type: ignore[attr-defined]
    patch = patching.replace(module, "f", 2)
    assert module.f == 2
    assert patching.original(module, "f") == 1
    assert patching.restore(patch) is None
    assert module.f == 1
    assert patching.active() == []


def test_what_a_script_hands_to_other_processes_is_pickled_by_its_name() -> None:
    """`multiprocessing` does it with `Process(target=torch.save)`."""
    real = torch.save
    conductor = Conductor(observe)
    conductor.install()
    try:
        assert torch.save is not real
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
        assert inspect.signature(torch.save) == inspect.signature(real)
        assert inspect.signature(torch.compile).parameters["fullgraph"]
        assert pickle.loads(pickle.dumps(torch.compile)) is torch.compile
    finally:
        conductor.uninstall()
    assert torch.save is real


def test_absence_is_restored() -> None:
    patch = patching.replace(Derived, "call", lambda self: "patched")
    assert Derived().call() == "patched"
    assert Base().call() == "base"
    patching.restore(patch)
    assert "call" not in vars(Derived)
    assert Derived().call() == "base"


def test_on_an_instance() -> None:
    one, other = Base(), Base()
    patch = patching.replace(one, "call", lambda: "mine")
    assert (one.call(), other.call()) == ("mine", "base")
    patching.restore(patch)
    assert vars(one) == {}


def test_last_in_first_out() -> None:
    module = types.ModuleType("m")
    module.f = 0  # type: ignore[attr-defined]
    for value in (1, 2, 3):
        patching.replace(module, "f", value)
    assert patching.original(module, "f") == 0
    assert patching.restore_all() == []
    assert module.f == 0


def test_what_lies_over_ours_is_left_and_reported() -> None:
    module = types.ModuleType("m")
    module.f = 0  # type: ignore[attr-defined]
    patch = patching.replace(module, "f", 1)
    module.f = 2  # type: ignore[attr-defined]
    line = patching.restore(patch)
    assert line is not None
    assert "m.f was replaced again" in line
    assert module.f == 2
    assert patching.active() == []


def test_restoring_twice() -> None:
    module = types.ModuleType("m")
    patch = patching.replace(module, "f", 1)
    assert patching.restore(patch) is None
    module.f = 5  # type: ignore[attr-defined]
    assert patching.restore(patch) is None
    assert module.f == 5


def test_what_was_never_there() -> None:
    with pytest.raises(AttributeError):
        patching.original(types.ModuleType("m"), "nothing")
