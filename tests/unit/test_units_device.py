"""Units for accelerators: what can be seen of them on a machine without one."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from unit_loops import Images, plain, same_bits, seamed

from hasten.environment import look
from hasten.instrument.seams.delivery import Delivery
from hasten.instrument.seams.loader import LoaderSeams
from hasten.optimisations import find

FOR_ACCELERATORS = {
    "accelerator": "this machine has no GPU",
    "cuda-graphs": "there are no CUDA graphs on cpu",
    "cudnn-benchmark": "cuDNN isn't used on cpu",
    "device-prefetch": "batches aren't copied to a GPU: training is on cpu",
    "pinned-memory": "batches aren't copied to a GPU: training is on cpu",
}


@pytest.mark.parametrize("name", sorted(FOR_ACCELERATORS))
def test_on_a_cpu_they_say_why_not(name: str, make_profile: Any) -> None:
    machine = replace(look(), gpus=())
    assert find(name).applies(make_profile(), machine).reason == FOR_ACCELERATORS[name]


def test_a_script_on_the_cpu_beside_a_gpu_is_told(make_profile: Any) -> None:
    from dataclasses import replace

    from hasten.environment import Gpu

    machine = replace(look(), gpus=(Gpu("NVIDIA H200"),))
    unit = find("accelerator")
    assert unit.applies(make_profile(torch="2.14.1+cu130"), machine).values == ("cuda",)
    without = unit.applies(make_profile(torch="2.14.1+cpu"), machine)
    assert without.reason == "torch 2.14.1+cpu was built without support for GPUs"


def test_models_of_one_class_are_compiled_as_static_ones(make_profile: Any) -> None:
    """torch fails to compile two `nn.Sequential` after one another: it takes sizes to vary."""
    profile, machine = make_profile(), replace(look(), compiler="/usr/bin/g++")
    (root,) = profile.roots
    for roots, value in (
        ((root, root), {"dynamic": False}),
        ((root, replace(root, name="Other")), {}),
        ((root, replace(root, shapes_vary=True)), {"dynamic": True}),
    ):
        assert find("compile").applies(replace(profile, roots=roots), machine).values == (value,)


def test_compile_modes_are_for_gpus_with_shapes_that_stay(make_profile: Any) -> None:
    unit = find("compile")
    modes = ({"mode": "reduce-overhead"}, {"mode": "max-autotune"})
    assert unit.applies(make_profile(device="cuda"), look()).values == ({}, *modes)
    assert all("mode" not in value for value in unit.applies(make_profile(), look()).values)
    given: list[Any] = []
    roots = [SimpleNamespace(compile=given.append)]
    for value in ({}, *modes):
        unit.enable(SimpleNamespace(roots=roots), value)  # type: ignore[arg-type]
        unit.check(value)
    assert given[0] == {"options": {"fallback_random": True}}
    assert given[1]["options"]["triton.cudagraphs"] and given[1]["options"]["fallback_random"]
    assert given[2]["options"]["max_autotune"]
    assert modes == ({"mode": "reduce-overhead"}, {"mode": "max-autotune"}), "they are plans'"
    with pytest.raises(ValueError, match="reduce-overhead"):
        unit.check({"mode": "fastest"})


Pair = namedtuple("Pair", "images labels")


def test_delivery_keeps_nested_batches_as_they_are() -> None:
    batch = {"pair": Pair(torch.ones(2, 3), [torch.zeros(2), "name"]), "n": 3}
    delivery = Delivery()
    assert delivery(batch) is batch
    delivery.set("device", "cpu")
    given = delivery(batch)
    assert type(given["pair"]) is Pair and given["n"] == 3
    assert given["pair"].labels[1] == "name"
    assert torch.equal(given["pair"].images, torch.ones(2, 3))
    assert delivery.moved == 2


def test_a_loader_delivers_in_order_and_stops_doing_so() -> None:
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=2)

    class Nobody:
        def fetching(self, loader: Any) -> None: ...
        def fetched(self, loader: Any, batch: Any) -> None: ...
        def epoch_started(self, loader: Any) -> None: ...
        def epoch_ended(self, loader: Any) -> None: ...

    seams = LoaderSeams(Nobody())
    seams.install()
    try:
        seen = []
        for place, (batch,) in enumerate(loader):
            seen += batch.tolist()
            owned = seams.owned(loader)
            assert owned is not None
            owned.delivery.set("device" if place % 2 == 0 else None, "cpu")
            assert owned.delivery.moved == 0
        assert seen == list(range(12))
    finally:
        seams.close()


def test_a_root_that_is_placed_where_it_is_trains_the_same() -> None:
    """The way there and back, without a device to go to."""
    training = Images(torch.optim.AdamW, lr=1e-3)
    with seamed(training) as ours:
        for index in range(6):
            ours.seams.roots[0].place("cpu" if index % 2 else None)
            ours.seams.optimizers[0].follow()
            training.step(index)
    assert same_bits(training.weights(), plain(Images(torch.optim.AdamW, lr=1e-3), 6))


@pytest.mark.gpu
def test_a_root_trains_on_the_accelerator_and_comes_back() -> None:
    training = Images(torch.optim.AdamW, lr=1e-3)
    with seamed(training) as ours:
        assert ours.run([{}, {"accelerator": "cuda"}, {}]) == {}
        proof = ours.prove("accelerator", "cuda")
        assert proof.passed, proof
    assert all(p.device.type == "cpu" for p in training.model.parameters())


# --- allocators ----------------------------------------------------------------------------------


def test_allocators_that_are_installed(
    make_profile: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    unit = find("allocator")
    assert not unit.live
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libjemalloc.so.2").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", "/own.so")
    assert "jemalloc" in unit.applies(make_profile(), look()).values
    path = str(tmp_path / "lib" / "libjemalloc.so.2")
    assert unit.environment("jemalloc") == {"LD_PRELOAD": f"{path} /own.so"}
    monkeypatch.setenv("LD_PRELOAD", path)
    assert unit.applies(make_profile(), look()).reason == (
        "LD_PRELOAD loads another allocator already"
    )
    assert unit.took_effect(SimpleNamespace(), "tcmalloc") == "tcmalloc isn't loaded"  # type: ignore[arg-type]


def test_expandable_segments_are_added_to_what_is_set(
    make_profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = find("allocator")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert unit.applies(make_profile(device="cuda"), look()).values == ("expandable_segments",)
    assert unit.environment("expandable_segments") == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"
    }
