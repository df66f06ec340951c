"""Optimisations that do nothing, cost time, or fail: for tests of the search itself."""

from __future__ import annotations

import os
import signal
import time
from typing import ClassVar

from hasten.optimisations import Applies, Numerics, Optimisation


class Placebo(Optimisation):
    """Does nothing."""

    name: ClassVar[str] = "placebo"
    numerics: ClassVar[Numerics] = Numerics.EXACT
    order: ClassVar[int] = 90

    def applies(self, profile, environment):
        return Applies(values=(True,))

    def enable(self, seams, value):
        pass

    def disable(self, seams):
        pass

    def took_effect(self, seams, value):
        return None

    def check(self, value):
        pass


class BusyWait(Placebo):
    """Burns a share of the usual iteration time in every optimizer step."""

    name: ClassVar[str] = "busy-wait"
    share = 0.05
    seconds = 0.0
    handle = None

    def applies(self, profile, environment):
        return Applies(values=(self.share * profile.iteration,))

    def enable(self, seams, value):
        def wait(optimizer, args, kwargs):
            end = time.perf_counter() + value
            while time.perf_counter() < end:
                pass

        self.handle = seams.optimizers[0].optimizer.register_step_post_hook(wait)

    def disable(self, seams):
        self.handle.remove()


class Raises(Placebo):
    """Fails in the script's own frames."""

    name: ClassVar[str] = "raises"

    def enable(self, seams, value):
        def fail(optimizer, args, kwargs):
            raise RuntimeError("view size is not compatible")

        seams.optimizers[0].optimizer.register_step_pre_hook(fail)


class Killed(Placebo):
    """Dies as under the kernel's out-of-memory killer."""

    name: ClassVar[str] = "killed"

    def enable(self, seams, value):
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Placebo):
    """Never comes back."""

    name: ClassVar[str] = "hangs"

    def enable(self, seams, value):
        time.sleep(3600)


class NotANumber(Placebo):
    """Makes the loss NaN."""

    name: ClassVar[str] = "nan"

    def enable(self, seams, value):
        import torch

        with torch.no_grad():
            next(seams.roots[0].module.parameters()).fill_(float("nan"))


class Drops(Placebo):
    """Claims to be exact and scales the output: faster or not, it must be refused."""

    name: ClassVar[str] = "drops"
    needs: ClassVar[str] = "roots"

    def enable(self, seams, value):
        seams.roots[0].autocast("bfloat16")

    def disable(self, seams):
        seams.roots[0].autocast(None)
