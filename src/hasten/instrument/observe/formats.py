"""Observes where a script asks for double precision: event "double"."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log


class Formats(Observer):
    """Where modules become float64."""

    name: ClassVar[str] = "formats"

    def start(self, log: Log) -> None:
        """Hook the ways of a module and of the default."""
        log.wrap(torch.nn.Module, "double", "double")
        log.wrap(torch.nn.Module, "to", "module_to", _to)
        log.wrap(torch, "set_default_dtype", "default_dtype", _default)


def _to(module: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    wanted = (*args, *kwargs.values())
    return {"kind": "double"} if torch.float64 in wanted else {}


def _default(dtype: Any) -> dict[str, Any]:
    return {"kind": "double"} if dtype is torch.float64 else {}
