"""Observes whether the script trains with NVIDIA's apex.

That apex can be imported proves nothing, since libraries try it. Facts: "uses", a list of what
of it was used and where: its loss scaling, its optimizers, its modules.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any, ClassVar

from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.places import place, users_frame

_At = tuple[str, int, str]


class Apex(Observer):
    """What of apex is in use."""

    name: ClassVar[str] = "apex"

    def __init__(self) -> None:
        self._uses: dict[str, _At | None] = {}
        self._hooked = False

    def iteration_ended(self, log: Log, iteration: Any) -> None:
        """Hook its loss scaling once it is there: every iteration calls it."""
        amp = sys.modules.get("apex.amp")
        if amp is None or self._hooked or not callable(getattr(amp, "scale_loss", None)):
            return
        self._hooked = True
        scale_loss, uses = amp.scale_loss, self._uses

        def seen(*args: Any, **kwargs: Any) -> Any:
            uses.setdefault("apex.amp.scale_loss", users_frame())
            return scale_loss(*args, **kwargs)

        log.replace(amp, "scale_loss", seen)

    def before_step(self, log: Log, optimizer: Any) -> None:
        """An optimizer of apex?"""
        self._see(type(optimizer))

    def root_entered(self, log: Log, module: Any, training: bool) -> None:
        """A wrapper of apex?"""
        self._see(type(module))

    def _see(self, cls: type) -> None:
        if cls.__module__.partition(".")[0] == "apex":
            name = f"{cls.__module__}.{cls.__name__}"
            if name not in self._uses:
                self._uses[name] = users_frame(3)

    def finish(self, log: Log, conductor: Any) -> dict[str, Any]:
        """All uses, those inside the model as well."""
        for root in conductor.seams.roots if conductor.seams is not None else ():
            for module in root.module.modules():
                cls = type(module)
                if cls.__module__.partition(".")[0] == "apex":
                    self._uses.setdefault(f"{cls.__module__}.{cls.__name__}", None)
        uses = [
            {"name": name, "place": asdict(place(*at)) if at is not None else None}
            for name, at in self._uses.items()
        ]
        return {"uses": uses} if uses else {}
