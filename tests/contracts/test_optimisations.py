"""What every optimisation keeps to, found by discovery: a new one is held to it by itself."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hasten.optimisations
from hasten.environment import Environment, Gpu, look
from hasten.optimisations import Applies, Numerics, Optimisation, discover, find
from hasten.plan import Plan, dump, load
from hasten.records import ItemFacts, Profile, Value

UNITS = discover()
SECTIONS = ("What it does", "Why it is faster", "When it helps", "Numerics", "Example", "Source")
SEAMS = ("", "roots", "optimizers", "loader")
GARBAGE: tuple[Any, ...] = (
    *(None, "", "garbage", -1, 10**9, 1.5, float("nan"), [], [1], (), b"x", object()),
    *({"nothing": 1}, {"workers": "many"}, {"": None}),
)

every_unit = pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS.keys())
Make = Callable[..., Profile]


def documentation(unit: Optimisation) -> str:
    """The docstring of the unit's file."""
    module = __import__(type(unit).__module__, fromlist=["_"])
    return module.__doc__ or ""


def profiles(make: Make) -> Iterator[Profile]:
    """Loops of many kinds, the strange ones too."""
    plain = make()
    loader, root, optimizer = plain.loader, plain.roots[0], plain.optimizers[0]
    assert loader is not None
    change = dataclasses.replace
    yield plain
    yield make(device="cuda", roots=(change(root, device="cuda:0"),))
    yield make(device="mps", roots=(change(root, device="mps"),))
    yield make(loader=None, border="step")
    yield make(loader=change(loader, kind="iterable", length=None, dataset_items=None))
    items = ItemFacts("", "decoded items", 1e5, 1e8, 5e-3, 1e-4, persistent=True, room=2**30)
    yield make(loader=change(loader, items=items))
    yield make(loader=change(loader, items=ItemFacts("items draw random numbers everywhere")))
    yield make(loader=change(loader, items=change(items, room=1)))
    yield make(loader=change(loader, items=change(items, kept_seconds=5e-3)))
    yield make(loader=change(loader, workers=8, prefetch=4, persistent=True))
    yield make(loader=change(loader, owned=False, not_owned_because="it is not torch's"))
    yield make(loader=change(loader, batch_size=None, collate="own", sampler="own"))
    yield make(roots=(), optimizers=())
    yield make(roots=(root, root), optimizers=(optimizer, optimizer))
    yield make(roots=(change(root, dtypes=("bfloat16",)),))
    yield make(roots=(change(root, dtypes=("float64", "float32"), shapes_vary=True),))
    yield make(roots=(change(root, own_autocast="bfloat16"),))
    yield make(roots=(change(root, own_compile=True),))
    yield make(roots=(), own_compile=True)
    yield make(own_scaler=True)
    yield make(optimizers=(change(optimizer, name="LBFGS", closure=True, steps=0.2),))
    yield make(optimizers=(change(optimizer, fused=True),))
    yield make(optimizers=(change(optimizer, foreach=True, sparse=True),))
    yield make(optimizers=(change(optimizer, name="Own", module="__main__", known=False),))
    yield make(threads=1, iterations_per_epoch=None)
    yield make(iteration_seconds=(), phases={})
    yield make(iterations_per_step=4.0, other_loaders=3)
    yield make(zero_fills=1.0, debug=("anomaly", "profiler"), denormals=0.01)
    yield make(zero_fills=1.0, untouched="layer.weight", float32_precision="mixed")
    yield make(roots=(change(root, convolutions=20),), cudnn_benchmark=True)
    yield make(roots=(change(root, convolutions=20, channels_last=20),))
    yield make(device="cuda", roots=(change(root, device="cuda:0", convolutions=20),))
    yield make(device="cuda", cudnn_benchmark=True, loader=change(loader, pinned=True))
    yield make(optimizers=(change(optimizer, compilable="its step was replaced"),))


def machines() -> Iterator[Environment]:
    here = look()
    change = dataclasses.replace
    yield here
    yield change(here, usable_cores=64.0, logical_cores=64, physical_cores=64)
    yield change(here, usable_cores=0.5, cpu_bf16=False, cpu_flags=())
    yield change(here, gpus=(Gpu("NVIDIA H200", 141 * 2**30),))
    yield change(here, compiler=None, torch=None, shm=None, shm_free=None, load=None)
    yield change(here, omp_threads=1)
    yield change(here, cpu_bf16=True, cpu_flags=("avx512_bf16", "avx512_fp16"))


def answers(unit: Optimisation, make: Make) -> Iterator[tuple[Profile, Applies]]:
    for profile in profiles(make):
        for machine in machines():
            yield profile, unit.applies(profile, machine)


def values(unit: Optimisation, make: Make) -> list[Value]:
    """Every value that the unit wants to try anywhere."""
    found: dict[str, Value] = {}
    for _, answer in answers(unit, make):
        found |= {json.dumps(value, sort_keys=True): value for value in answer.values}
    return list(found.values())


def test_some_are_found() -> None:
    assert {"amp-bf16", "loader-workers", "threads", "fused-optimizer", "compile"} <= set(UNITS)


def test_every_unit_file_is_discovered() -> None:
    """A file that declares nothing would be silently without effect."""
    folder = Path(hasten.optimisations.__file__).parent
    files = {f for f in folder.rglob("*.py") if f.name not in ("__init__.py", "base.py")}
    modules = {type(unit).__module__.rpartition(".")[2] for unit in UNITS.values()}
    declared = {f.stem for f in files if not f.stem.startswith("_")}
    assert declared == modules


def test_an_unknown_name() -> None:
    with pytest.raises(KeyError):
        find("warp-drive")


@every_unit
def test_declarations(unit: Optimisation) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", unit.name)
    assert find(unit.name) is unit
    assert isinstance(unit.numerics, Numerics)
    assert unit.warmup >= 1
    assert unit.needs in SEAMS
    assert unit.name not in (*unit.excludes, *unit.after)
    assert set(unit.excludes) | set(unit.after) <= set(UNITS)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in unit.fixes)


def test_names_are_unique() -> None:
    assert len({type(unit) for unit in UNITS.values()}) == len(UNITS)
    assert len({unit.name for unit in UNITS.values()}) == len(UNITS)


@every_unit
def test_documentation(unit: Optimisation) -> None:
    """One sentence, then the sections in order, none of them empty; its class is named."""
    text = documentation(unit)
    first, *rest = text.split("\n\n")
    assert first.endswith(".")
    assert len(first) < 160
    headings = [part.splitlines()[0].strip() for part in rest if not part.startswith(" ")]
    assert tuple(h for h in headings if h in SECTIONS) == SECTIONS
    for part in rest:
        if part.splitlines()[0].strip() in SECTIONS:
            assert len(part.strip().splitlines()) > 1, f"{part.splitlines()[0]} is empty"
    assert unit.numerics.value in text
    assert type(unit).__doc__


@every_unit
def test_applies_never_fails_and_gives_reasons(unit: Optimisation, make_profile: Make) -> None:
    yes = 0
    for profile, answer in answers(unit, make_profile):
        assert isinstance(answer, Applies)
        yes += bool(answer)
        if answer:
            assert len({json.dumps(v, sort_keys=True) for v in answer.values}) == len(answer.values)
            continue
        assert 10 < len(answer.reason) < 200, profile
        assert "\n" not in answer.reason
        assert not answer.reason.endswith(".")
    assert yes, "it applies nowhere"


@every_unit
def test_applies_is_pure(unit: Optimisation, make_profile: Make) -> None:
    machine = look()
    for profile in profiles(make_profile):
        before = dataclasses.asdict(profile)
        assert unit.applies(profile, machine) == unit.applies(profile, machine)
        assert dataclasses.asdict(profile) == before


@every_unit
def test_it_does_not_apply_without_its_seam(unit: Optimisation, make_profile: Make) -> None:
    without = make_profile(roots=(), optimizers=(), loader=None, border="step")
    if unit.needs:
        assert not unit.applies(without, look())


@every_unit
def test_check_takes_its_own_values(unit: Optimisation, make_profile: Make) -> None:
    for value in values(unit, make_profile):
        unit.check(value)


@every_unit
@pytest.mark.parametrize("garbage", GARBAGE, ids=[repr(g)[:20] for g in GARBAGE])
def test_check_refuses_garbage(unit: Optimisation, garbage: Any) -> None:
    with pytest.raises(ValueError) as error:
        unit.check(garbage)
    assert str(error.value), "say what was expected"
    assert "\n" not in str(error.value)


@every_unit
def test_values_survive_json_and_a_plan(
    unit: Optimisation, make_profile: Make, tmp_path: Path
) -> None:
    path = tmp_path / "hasten.toml"
    for value in values(unit, make_profile):
        assert json.loads(json.dumps(value)) == value
        dump(Plan("train.py", (), {unit.name: value}), path)
        assert load(path).setting == {unit.name: value}
