"""Seam: autograd's debugging aids that a script has left on.

Anomaly detection, a profiler and gradient checks change no result, and cost up to several times
the iteration. While they are off, what the script asks for is remembered, so that its own
questions are answered as ever and going back finds them as the script wants them by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import profiler

from hasten.instrument import patching

AIDS = ("anomaly", "profiler", "gradcheck")


class Debugging:
    """The debugging aids of this process.

    Attributes:
        seen: those that were on in some backward pass.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._off: tuple[str, ...] = ()
        self._checks: list[patching.Patch] = []
        self._patches: list[patching.Patch] = []
        self._wanted = (False, True)  # anomaly mode as the script has asked for it
        self._set_anomaly: Callable[[bool, bool], None] = torch.set_anomaly_enabled

    def install(self) -> None:
        """Look at gradient checks from now on, also where the script imports them by name."""
        for name in ("gradcheck", "gradgradcheck"):
            check = self._checked(getattr(torch.autograd, name))
            self._checks.append(patching.replace(torch.autograd, name, check))

    def uninstall(self) -> None:
        """Look no more, unless they are off."""
        if not self._off:
            for patch in reversed(self._checks):
                patching.restore(patch)
            self._checks = []

    def look(self) -> None:
        """A backward pass begins; cheap enough for each."""
        if torch.is_anomaly_enabled():
            self.seen.add("anomaly")
        if _profiling():
            self.seen.add("profiler")

    @property
    def off(self) -> tuple[str, ...]:
        """What is off now."""
        return self._off

    def switch_off(self, aids: Sequence[str]) -> None:
        """Have these off from now on; none: all as the script has it."""
        before, self._off = self._off, tuple(aids)
        if "profiler" in before:
            _collect(True)
        for patch in reversed(self._patches):
            patching.restore(patch)
        self._patches = []
        if "anomaly" in before:
            self._set_anomaly(*self._wanted)
        if "anomaly" in aids:
            self._anomaly_off()
        if "profiler" in aids:
            enable = vars(profiler)["_enable_profiler"]
            self._patch(profiler, "_enable_profiler", _quiet(enable))
            _collect(False)

    def _anomaly_off(self) -> None:
        self._wanted = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        self._set_anomaly = torch.set_anomaly_enabled

        def remember(enabled: bool, check_nan: bool = True) -> None:
            self._wanted = enabled, check_nan

        self._set_anomaly(False, True)
        self._patch(torch, "set_anomaly_enabled", remember)
        self._patch(torch, "is_anomaly_enabled", lambda: self._wanted[0])
        self._patch(torch, "is_anomaly_check_nan_enabled", lambda: self._wanted[1])

    def _patch(self, owner: Any, name: str, new: Any) -> None:
        self._patches.append(patching.replace(owner, name, new))

    def _checked(self, check: Callable[..., bool]) -> Callable[..., bool]:
        def checked(*args: Any, **kwargs: Any) -> bool:
            self.seen.add("gradcheck")
            return True if "gradcheck" in self._off else check(*args, **kwargs)

        return checked


def _profiling() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def _quiet(enable: Callable[..., Any]) -> Callable[..., Any]:
    """A profiler that starts anew (a schedule, another epoch) collects nothing either."""

    def quiet(*args: Any, **kwargs: Any) -> Any:
        result = enable(*args, **kwargs)
        _collect(False)
        return result

    return quiet


def _collect(on: bool) -> None:
    """Let a running profiler collect, or pause it; it stays alive either way."""
    toggle = getattr(torch._C._autograd, "_toggle_collection_dynamic", None)
    if toggle is not None and _profiling():
        toggle(on, set(torch.profiler.supported_activities()))  # type: ignore[no-untyped-call]
