"""Optimisations that train something else than the script: `hasten verify` has to find each."""

from __future__ import annotations

from typing import Any, ClassVar

from hasten.optimisations import Applies, Numerics, Optimisation


class Honest(Optimisation):
    """Does nothing."""

    name: ClassVar[str] = "honest"
    numerics: ClassVar[Numerics] = Numerics.EXACT

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


class SkipsSteps(Honest):
    """Every tenth step isn't made."""

    name: ClassVar[str] = "skips-steps"
    every = 10

    def enable(self, seams, value):
        optimizer = seams.optimizers[0].optimizer
        step, count = optimizer.step, [0]

        def skipping(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return step(*args, **kwargs) if count[0] % self.every else None

        optimizer.step = skipping


class RepeatsBatch(Honest):
    """Every tenth batch is the one before."""

    name: ClassVar[str] = "repeats-batch"
    every = 10

    def enable(self, seams, value):
        last, count, deliver = [None], [0], seams.loader.delivery

        def repeating(batch: Any) -> Any:
            count[0] += 1
            again = last[0] is not None and count[0] % self.every == 0
            last[0] = last[0] if again else deliver(batch)
            return last[0]

        repeating.set, repeating.moved = deliver.set, 0  # type: ignore[attr-defined]
        seams.loader.delivery = repeating


class HalvesBatch(Honest):
    """Trains on the first half of each batch."""

    name: ClassVar[str] = "halves-batch"

    def enable(self, seams, value):
        stream = seams.loader._iterator()._stream
        inner = stream._iterator
        stream._iterator = iter([batch[: len(batch) // 2] for batch in inner])


class DoublesRate(Honest):
    """Another learning rate."""

    name: ClassVar[str] = "doubles-rate"

    def enable(self, seams, value):
        for group in seams.optimizers[0].optimizer.param_groups:
            group["lr"] *= 2


class LosesParameters(Honest):
    """The last layer isn't stepped any more."""

    name: ClassVar[str] = "loses-parameters"

    def enable(self, seams, value):
        def lose(optimizer, args, kwargs):
            for parameter in optimizer.param_groups[0]["params"][-2:]:
                parameter.grad = None

        seams.optimizers[0].optimizer.register_step_pre_hook(lose)


class MovesFrozen(Honest):
    """Moves what the script has frozen."""

    name: ClassVar[str] = "moves-frozen"

    def enable(self, seams, value):
        seams.roots[0].module.embed.weight.data.mul_(1.01)


class RenamesKeys(Honest):
    """A compiled wrapper in the model, as a careless torch.compile leaves it."""

    name: ClassVar[str] = "renames-keys"

    def enable(self, seams, value):
        import torch

        class Wrapper(torch.nn.Module):
            def __init__(self, inner: Any) -> None:
                super().__init__()
                self._orig_mod = inner

            def forward(self, x: Any) -> Any:
                return self._orig_mod(x)

        module = seams.roots[0].module
        module.layers = Wrapper(module.layers)


class ForgetsSchedule(Honest):
    """Schedulers of the kind that the script has do nothing any more."""

    name: ClassVar[str] = "forgets-schedule"

    def enable(self, seams, value):
        for group in seams.optimizers[0].optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        from torch.optim.lr_scheduler import ExponentialLR

        ExponentialLR.get_lr = lambda self: list(self.base_lrs)  # type: ignore[method-assign]


class NoisyGradient(Honest):
    """Gradients drown in noise; every counter stays as it is."""

    name: ClassVar[str] = "noisy-gradient"

    def enable(self, seams, value):
        import torch

        generator = torch.Generator().manual_seed(0)

        def drown(gradient: Any) -> Any:
            noise = torch.randn(gradient.shape, generator=generator)
            return gradient + 30 * gradient.norm() * noise / noise.norm()

        for parameter in seams.roots[0].module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(drown)


class OtherMasks(Honest):
    """Draws random numbers that the script doesn't: other dropout masks, not worse."""

    name: ClassVar[str] = "other-masks"

    def enable(self, seams, value):
        import torch

        torch.rand(3)


class Fails(Honest):
    """Fails in the script's own frames."""

    name: ClassVar[str] = "fails"

    def enable(self, seams, value):
        def fail(optimizer, args, kwargs):
            raise RuntimeError("view size is not compatible")

        seams.optimizers[0].optimizer.register_step_pre_hook(fail)
