"""Switches of the process: what they reach, and that they come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from unit_loops import Images, Layers, same_bits, seamed

from hasten.environment import look
from hasten.instrument.seams.flags import ProcessFlags, denormal_share
from hasten.optimisations import find

FLUSH = {"flush-denormals": True}
TINY = 2.0**-130


@pytest.fixture
def threads() -> Iterator[int]:
    """Two intra-op threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def left(tensor: torch.Tensor) -> list[float]:
    """The part of denormals that is left, in the half of each of two threads."""
    bits = tensor.detach().view(torch.int32).reshape(2, -1)
    return [float(part) for part in (bits != 0).double().mean(1)]


def product() -> torch.Tensor:
    return torch.full((1 << 20,), TINY) * 0.5


def gradient() -> torch.Tensor:
    """A denormal that a backward pass computes."""
    weight = torch.full((1 << 20,), 1.0, requires_grad=True)
    (weight * TINY).backward(torch.full((1 << 20,), 0.5))
    assert weight.grad is not None
    return weight.grad


def in_new_thread() -> torch.Tensor:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(product()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("compute", [product, gradient, in_new_thread])
def test_denormals_are_flushed_in_every_thread(compute: Any, threads: int) -> None:
    """In the main thread, the pool, backward passes, and threads that are started later."""
    assert left(compute()) == [1.0, 1.0]
    with seamed(Layers()) as ours:
        for setting, kept in ((FLUSH, 0.0), ({}, 1.0), (FLUSH, 0.0), ({}, 1.0)):
            assert ours.run([setting], each=1) == {}
            assert left(compute()) == [kept, kept], setting
        ours.seams.apply(FLUSH)
    assert left(compute()) == [1.0, 1.0]


def test_a_script_that_flushes_by_itself_goes_on_doing_so(threads: int) -> None:
    flags = ProcessFlags()
    flags.flush_denormals(True)
    try:
        with seamed(Layers()) as ours:
            ours.run([FLUSH, {}])
            assert left(product()) == [0.0, 0.0]
    finally:
        flags.flush_denormals(None)
    assert left(product()) == [1.0, 1.0]


def test_denormals_are_found_where_they_are(make_profile: Any) -> None:
    assert denormal_share([torch.tensor([1.0, 0.0, TINY, -TINY])]) == 0.5
    assert denormal_share([torch.tensor([1.0, 2.0**-126, 0.0, float("inf"), float("nan")])]) == 0.0
    assert denormal_share([torch.ones(4, dtype=torch.float64)]) == 0.0
    assert denormal_share([]) == 0.0
    training = Layers(torch.optim.AdamW)
    with seamed(training) as ours:
        ours.run([{}])
        assert ours.seams.denormals == 0.0
        training.optimizer.state[training.model[0].weight]["exp_avg"].fill_(TINY)
        assert ours.seams.denormals > 0.1
        assert ours.prove("flush-denormals").passed
    unit = find("flush-denormals")
    assert "no denormal number" in unit.applies(make_profile(), look()).reason
    assert unit.applies(make_profile(denormals=0.1), look())


# --- products of float32 -----------------------------------------------------------------------


def parts() -> dict[Any, str]:
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    names = [("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul")]
    return {} if read is None else {n: read(*n) for n in [*names, ("mkldnn", "conv")]}


@pytest.mark.parametrize("which", ["high", "medium"])
def test_the_precision_comes_back_as_it_was(which: str) -> None:
    before, name = parts(), torch.get_float32_matmul_precision()
    setting = {"matmul-precision": which}
    with seamed(Images()) as ours:
        for wanted in (setting, {}, setting, {}):
            assert ours.run([wanted], each=1) == {}
            assert torch.get_float32_matmul_precision() == wanted.get("matmul-precision", name)
            assert wanted or parts() == before
    assert parts() == before


def test_it_computes_what_torch_computes_with_the_same_switch() -> None:
    model, x = nn.Linear(256, 256), torch.randn(64, 256)
    torch.set_float32_matmul_precision("medium")
    plain = model(x)
    torch.set_float32_matmul_precision("highest")
    flags = ProcessFlags()
    flags.set_float32_precision("medium")
    ours = model(x)
    flags.set_float32_precision(None)
    assert same_bits([ours], [plain])


def test_the_scripts_own_parts_are_left_as_they_are() -> None:
    if not parts():
        pytest.skip("this torch has one precision for everything")
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16")
    try:
        before = parts()
        flags = ProcessFlags()
        assert flags.float32_precision in ("mixed", "highest")
        flags.set_float32_precision("medium")
        flags.set_float32_precision(None)
        assert parts() == before
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")


def test_less_precision_is_proven_on_the_model() -> None:
    with seamed(Images()) as ours:
        proof = ours.prove("matmul-precision", "medium")
    assert proof.passed, proof


def test_reasons_against_less_precision(make_profile: Any) -> None:
    from dataclasses import replace

    unit, machine = find("matmul-precision"), look()
    without = replace(machine, cpu_bf16=False)
    assert "no bf16 instructions" in unit.applies(make_profile(), without).reason
    mixed = make_profile(float32_precision="mixed")
    assert "mixed itself" in unit.applies(mixed, replace(machine, cpu_bf16=True)).reason


def test_cudnn_benchmark_comes_back() -> None:
    flags = ProcessFlags()
    before = flags.cudnn_benchmark
    for on in (True, None, True, False, None):
        flags.set_cudnn_benchmark(on)
        assert flags.cudnn_benchmark == (before if on is None else on)
