"""float16 with scaling against torch's own GradScaler, to the bit; and autocast turned off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unit_loops import Images, Layers, Training, furthest, plain, same_bits, seamed

from hasten.environment import look
from hasten.instrument import patching
from hasten.instrument.seams import scaling
from hasten.optimisations import find

HALF = {"amp-fp16": True}
OFF = {"autocast-off": True}


class Script(Layers):
    """Accumulates over two batches, clips, steps, and has a schedule; `boost` scales its loss."""

    def __init__(self, kind: Any = torch.optim.SGD, boost: float = 1.0, **options: Any) -> None:
        super().__init__(kind, **({"lr": 0.02} | options))
        self.boost = boost
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.9)
        self.rates: list[float] = []

    def step(self, index: int) -> None:
        self.optimizer.zero_grad()
        for half in (0, 1):
            (self.loss(2 * index + half) * self.boost).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.schedule.step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])


class ByHand(Script):
    """The same as PyTorch's documentation writes it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scaling.FIRST)

    def loss(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, 10, generator=generator)
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        return F.cross_entropy(out.float(), torch.randint(3, (16,), generator=generator))

    def step(self, index: int) -> None:
        self.optimizer.zero_grad()
        for half in (0, 1):
            self.scaler.scale(self.loss(2 * index + half) * self.boost).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= before:
            self.schedule.step()
        self.rates.append(self.optimizer.param_groups[0]["lr"])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("boost", [1.0, 64.0, 4096.0], ids=["no overflow", "some", "many"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
def test_the_same_bits_as_with_a_grad_scaler(kind: Any, boost: float) -> None:
    """Clipping, accumulation, left-out steps and schedule included."""
    theirs = ByHand(kind, boost)
    wanted = plain(theirs, 16)
    with seamed(Script(kind, boost)) as ours:
        ours.seams.apply(HALF)
        for index in range(16):
            ours.training.step(index)
        assert same_bits(ours.training.weights(), wanted)
        assert ours.training.rates == theirs.rates
        assert ours.seams.scaling.scale == theirs.scaler.get_scale()
        assert (ours.seams.scaling.skipped > 0) == (boost > 1.0)
        assert ours.seams.no_effect() == {}


def test_while_it_is_off_nothing_is_scaled() -> None:
    class Counting(Script):
        def step(self, index: int) -> None:
            super().step(index)
            self.norms.append(float(self.model[0].weight.grad.norm()))

    training = Counting()
    training.norms = []
    with seamed(training) as ours:
        assert ours.run([{}, HALF, {}, HALF, {}], each=2) == {}
    reference = Counting()
    reference.norms = []
    plain(reference, 10)
    for mine, plainly in zip(training.norms, reference.norms, strict=True):
        assert mine == pytest.approx(plainly, rel=0.02)
    assert training.norms[:2] == reference.norms[:2]
    assert furthest(training.weights(), reference.weights()) < 0.02
    parameter = training.model[0].weight
    assert not parameter._backward_hooks and not training.optimizer._optimizer_step_pre_hooks
    assert patching.active() == []


def test_hooks_of_the_script_see_true_gradients() -> None:
    """Also those that were there before, which torch calls first."""
    seen: list[float] = []
    training = Script()
    handle = training.model[0].weight.register_hook(lambda g: seen.append(float(g.norm())))
    with seamed(training) as ours:
        ours.run([{}, HALF], each=1)
    handle.remove()
    assert max(seen) < 10 * min(seen)


class Adversaries(Training):
    """Two networks, two optimizers, two losses."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = [nn.Linear(4, 8), nn.Linear(8, 1)]
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in self.models]

    def run(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def finish(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def step(self, index: int) -> None:
        generator = torch.Generator().manual_seed(index)
        noise, real = torch.randn(2, 16, 4, generator=generator), torch.randn(16, 8)
        maker, critic = self.models
        self.optimizers[1].zero_grad()
        fake = self.run(maker, noise[0]).detach()
        self.backward((self.run(critic, fake) - self.run(critic, real)).mean())
        self.finish(self.optimizers[1])
        self.optimizers[0].zero_grad()
        self.backward(-self.run(critic, self.run(maker, noise[1])).mean())
        self.finish(self.optimizers[0])


class AdversariesByHand(Adversaries):
    """The same with torch's GradScaler."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scaling.FIRST)

    def run(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(x).float()

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def finish(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        if optimizer is self.optimizers[0]:
            self.scaler.update()


def test_several_losses_and_optimizers() -> None:
    torch.manual_seed(1)
    theirs = AdversariesByHand()
    torch.manual_seed(1)
    wanted = plain(theirs, 6)
    training = Adversaries()
    torch.manual_seed(1)
    with seamed(training) as ours:
        assert ours.run([HALF], each=6) == {}
        assert ours.seams.scaling.passes == 12
    assert same_bits(training.weights(), wanted)


def test_a_parameter_that_is_set_free_later_is_scaled_back() -> None:
    training = Script()
    last = training.model[2].weight
    last.requires_grad_(False)
    with seamed(training) as ours:
        ours.run([HALF], each=2)
        last.requires_grad_(True)
        ours.run([HALF], each=1)
        assert last.grad is not None and float(last.grad.norm()) < 10


def test_a_leaf_that_is_no_parameter_is_told() -> None:
    class Adversarial(Layers):
        def step(self, index: int) -> None:
            x = torch.randn(4, 10, requires_grad=True)
            self.model(x).sum().backward()
            self.optimizer.step()

    with seamed(Adversarial()) as ours:
        reason = ours.run([HALF])["amp-fp16"]
    assert reason == "a tensor that is no parameter wants a gradient, which comes scaled"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
def test_a_step_that_overflows_moves_nothing(kind: Any) -> None:
    """Neither weights nor momentum nor the schedule; the gradients are there afterwards."""
    training = Script(kind, boost=1e9, weight_decay=0.1)
    with seamed(training) as ours:
        ours.run([{}], each=1)
        training.boost = 1e9
        before, rate = training.weights(), training.rates[-1]
        ours.run([HALF], each=1)
        assert same_bits(training.weights(), before)
        assert training.rates[-1] == rate
        assert training.model[0].weight.grad is not None
        assert ours.seams.scaling.scale == scaling.FIRST / 2


def test_with_cleared_gradients_a_left_out_step_stays_left_out() -> None:
    """`grads-to-none` gives zeros to what has no gradient; not to what scaling took away."""

    class Filling(Script):
        def step(self, index: int) -> None:
            self.optimizer.zero_grad(set_to_none=False)
            (self.loss(index) * self.boost).backward()
            self.optimizer.step()

    training = Filling(torch.optim.AdamW)
    with seamed(training) as ours:
        ours.run([{}], each=2)
        training.boost = 1e9
        before = training.weights()
        for setting in (HALF | {"grads-to-none": True}, {"grads-to-none": True} | HALF):
            ours.run([setting], each=1)
            assert same_bits(training.weights(), before)
            ours.seams.apply({})


def test_it_is_proven_and_a_wrong_scale_is_not() -> None:
    with seamed(Images(torch.optim.AdamW, lr=1e-3)) as ours:
        ours.run([{}])
        proof = ours.prove("amp-fp16")
    assert proof.passed and proof.numerics == "rounding", proof


def test_reasons_against_float16(make_profile: Any) -> None:
    from dataclasses import replace

    unit, machine = find("amp-fp16"), replace(look(), cpu_flags=("avx512_fp16",))
    assert unit.applies(make_profile(), machine)
    assert "GradScaler" in unit.applies(make_profile(own_scaler=True), machine).reason
    optimizer = make_profile().optimizers[0]
    own = make_profile(optimizers=(replace(optimizer, name="Own", known=False),))
    assert unit.applies(own, machine).reason.startswith("Own gives no way to leave out a step")
    without = replace(machine, cpu_flags=())
    assert "no float16 instructions" in unit.applies(make_profile(), without).reason
    images = make_profile(roots=(replace(make_profile().roots[0], convolutions=3),))
    assert "no fast backward pass" in unit.applies(images, machine).reason
    assert unit.applies(images, replace(machine, cpu_flags=("avx512_fp16", "amx_fp16")))


# --- the script's own autocast -----------------------------------------------------------------


class Casting(Layers):
    """A script with its own autocast in bfloat16, which looks at what comes out."""

    reduced = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.formats: list[torch.dtype] = []

    def step(self, index: int) -> None:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, 10, generator=generator)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.reduced):
            out = self.model(x)
        self.formats.append(out.dtype)
        out.float().square().mean().backward()
        self.optimizer.step()


def test_the_scripts_autocast_is_left_out_and_comes_back() -> None:
    training = Casting()
    with seamed(training) as ours:
        assert ours.run([{}, OFF, {}, OFF], each=2) == {}
        proof = ours.prove("autocast-off")
    assert proof.passed and proof.numerics == "rounding", proof
    assert set(training.formats) == {torch.bfloat16}
    with seamed(Casting()) as ours:
        ours.run([{}], each=1)
        ours.run([OFF], each=6, begin=1)
        without = ours.training.weights()
    full = Casting()
    full.step(0)
    full.reduced = False
    assert furthest(without, plain(full, 6, begin=1)) < 0.02
    assert furthest(without, plain(Casting(), 7)) > 0.0


def test_products_are_computed_in_float32_then() -> None:
    seen: list[torch.dtype] = []
    training = Casting()
    training.model[1].register_forward_hook(lambda m, a, out: seen.append(out.dtype))
    with seamed(training) as ours:
        ours.run([{}, OFF, {}], each=1)
    assert seen == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_reasons_against_leaving_it_out(make_profile: Any) -> None:
    unit = find("autocast-off")
    assert unit.applies(make_profile(), look()).reason == "the script uses no autocast"
