"""Observing a script for a diagnosis: observers by discovery, and the program that asks them."""

from __future__ import annotations

import importlib
import pkgutil

from hasten.instrument.observe.base import Observer


def discover() -> list[Observer]:
    """A new instance of every observer in this folder, in the order of their names."""
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        importlib.import_module(module.name)
    found = [c for c in Observer.__subclasses__() if c.__module__.startswith(__name__ + ".")]
    return [cls() for cls in sorted(found, key=lambda cls: cls.name)]
