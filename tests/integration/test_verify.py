"""`hasten verify` by the real command: honest plans hold, planted faults are found and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.instrument.shield.launch import ShieldMode
from hasten.tuning import invariants, verifying
from hasten.tuning.process import Child
from hasten.verification import Follow, Followed

TESTS = Path(__file__).parent.parent
SCRIPT = TESTS / "scripts" / "verified.py"
ITERATIONS = 45  # of 60: two epoch borders


def put_units(folder: Path) -> str:
    """PYTHONPATH of a package that brings the broken units."""
    info = folder / "site" / "hasten_broken_units-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hasten-broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hasten.optimisations]\nb = hasten_broken_units\n")
    own = [path for path in [os.environ.get("PYTHONPATH")] if path]
    return os.pathsep.join([str(folder / "site"), str(TESTS / "units"), *own])


@pytest.fixture(scope="module")
def python_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return put_units(tmp_path_factory.mktemp("units"))


def follow(python_path: str, folder: Path, setting: dict[str, Any], *arguments: str) -> Followed:
    """One child, over the first iterations."""
    os.environ["PYTHONPATH"] = python_path
    argv = (str(SCRIPT), *arguments)
    child = Child(argv, ShieldMode.NONE, print, cwd=str(folder), pair=1)
    try:
        child.start()
        answer = child.ask(Follow(setting, ITERATIONS), 120.0)
    finally:
        child.close()
        os.environ.pop("PYTHONPATH", None)
    assert isinstance(answer, Followed), answer
    return answer


@pytest.fixture(scope="module")
def baseline(python_path: str, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return follow(python_path, tmp_path_factory.mktemp("baseline"), {})


def test_what_is_counted(baseline: Followed) -> None:
    rows = baseline.iterations
    assert len(rows) == ITERATIONS
    assert {(r.samples, r.backwards, r.steps) for r in rows} == {(32, 1, 1)}
    assert [k for k, r in enumerate(rows) if r.scheduler_steps] == [19, 39]
    assert rows[0].rates == (0.003,) and rows[44].rates == (pytest.approx(0.00243),)
    assert [(e.samples, e.distinct) for e in baseline.epochs] == [(640, 640)] * 2
    assert set(baseline.still) == {
        f"{n}.{p}" for n in ("embed", "unused") for p in ("weight", "bias")
    }
    assert "model 0: layers.0.weight (64, 32) float32" in baseline.keys
    assert "model.layers.0.weight" in baseline.saved
    assert rows[0].loss is not None and rows[44].loss is not None
    assert rows[44].loss < rows[0].loss
    assert baseline.reseeded == ("torch.manual_seed", "the generator of a DataLoader")


def test_the_same_seeds_give_the_same_bits(
    baseline: Followed, python_path: str, tmp_path: Path
) -> None:
    again = follow(python_path, tmp_path, {"honest": True})
    assert again == baseline
    assert invariants.broken(baseline, again) == []


def test_the_loss_is_seen_through_a_backward_pass_that_is_scaled(
    baseline: Followed, python_path: str, tmp_path: Path
) -> None:
    halved = follow(python_path, tmp_path, {"amp-fp16": True})
    assert all(row.loss is not None for row in halved.iterations)
    assert halved.losses == pytest.approx(baseline.losses, abs=0.02)


HONEST: list[dict[str, Any]] = [
    {"fused-optimizer": "fused", "grads-to-none": True, "threads": 1},
    {"fused-optimizer": "foreach", "loader-workers": {"workers": 2, "prefetch": 2}},
    {"compiled-optimizer": True},
]


@pytest.mark.parametrize("setting", HONEST, ids="+".join)
def test_honest_units_break_nothing(
    baseline: Followed, python_path: str, tmp_path: Path, setting: dict[str, Any]
) -> None:
    assert invariants.broken(baseline, follow(python_path, tmp_path, setting)) == []


BROKEN = {
    "skips-steps": "optimizer steps: 45 in 45 iterations, under the plan 41",
    "repeats-batch": "batches: the one of iteration",
    "halves-batch": "samples an update: 32 in update",
    "doubles-rate": "learning rate: 0.003 in iteration 4, under the plan 0.006",
    "forgets-schedule": "learning rate: 0.0027 in iteration 21, under the plan 0.003",
    "loses-parameters": "parameters that don't move any more: layers.3.bias, layers.3.weight",
    "moves-frozen": "parameters that move, and don't without the plan: embed.weight",
    "renames-keys": "checkpoint: keys of a compiled wrapper: model 0: layers._orig_mod.0.weight",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_unit_is_named(
    baseline: Followed, python_path: str, tmp_path: Path, name: str
) -> None:
    lines = invariants.broken(baseline, follow(python_path, tmp_path, {name: True}))
    assert any(line.startswith(BROKEN[name]) for line in lines), lines


# --- the command -------------------------------------------------------------------------------


def verify(
    python_path: str, folder: Path, setting: str, *options: str, script: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`hasten verify` with a plan of this setting."""
    plan = folder / "plan.toml"
    plan.write_text(f"schema = 1\n[settings]\n{setting}\n")
    line = [sys.executable, "-m", "hasten", "verify", "--plan", str(plan), *options]
    return subprocess.run(
        [*line, *(script or (str(SCRIPT),))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        timeout=300,
        check=False,
    )


def test_an_honest_plan_holds(python_path: str, tmp_path: Path) -> None:
    options = ("--json", "--seeds", "3", "--metric-regex", r"accuracy ([\d.]+)")
    done = verify(python_path, tmp_path, 'fused-optimizer = "fused"', *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "holds" and found["broken"] == []
    assert [j["verdict"] for j in found["judged"]] == ["not worse"] * 2
    assert [len(p[side]) for p in found["pairs"] for side in ("baseline", "plan")] == [60] * 6
    starts = {pair["baseline"][0] for pair in found["pairs"]}
    assert len(starts) == 3, "each pair has seeds of its own"
    assert all(0.5 < m <= 1 for pair in found["pairs"] for m in pair["metrics"])
    assert sorted(os.listdir(tmp_path)) == ["plan.toml"]  # nothing of the trials remains


@pytest.mark.slow
def test_a_plan_that_learns_less_is_found_worse(python_path: str, tmp_path: Path) -> None:
    done = verify(
        python_path, tmp_path, "noisy-gradient = true", "--seeds", "4", "--margin", "0.02"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "worse, by more than 0.02 (given)" in done.stdout
    assert "the same under the plan" in done.stdout  # no counter shows it
    assert "the plan does not train the same: do not use it" in done.stdout


@pytest.mark.slow
def test_too_little_data_is_no_equality(python_path: str, tmp_path: Path) -> None:
    options = ("--seeds", "2", "--iterations", "45", "--margin", "1e-7")
    done = verify(python_path, tmp_path, "other-masks = true", *options)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "can't tell whether worse by 1e-07 (given)" in done.stdout


@pytest.mark.slow
def test_pairs_that_run_at_the_same_time_are_the_same_to_the_bit(
    python_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `tune` runs them at its end."""
    monkeypatch.setenv("PYTHONPATH", python_path)
    monkeypatch.chdir(tmp_path)
    found = [
        verifying.verify(
            verifying.VerifyRequest(
                (str(SCRIPT),), {"grads-to-none": True}, seeds=2, iterations=25, together=together
            ),
            print,
        )
        for together in (True, False)
    ]
    assert [f.verdict for f in found] == ["holds"] * 2 and found[0].judged[0].identical
    assert found[0].pairs == found[1].pairs
    assert sorted(os.listdir(tmp_path)) == []


def test_a_script_that_fails_under_the_plan(python_path: str, tmp_path: Path) -> None:
    done = verify(python_path, tmp_path, "fails = true", "--seeds", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the script fails under the plan: RuntimeError: view size is not compatible" in " ".join(
        done.stdout.split()
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--metric-regex", "("), "--metric-regex is not a regular expression"),
        (("--metric-regex", "(a)(b)"), "one group"),
        (("--metric-margin", "1"), "need --metric-regex"),
        (("--metric-regex", "no such thing"), "nothing in the script's output matches"),
        (("--metric-regex", "epoch"), "'epoch' is not a number"),
        (("--seeds", "1"), "--seeds"),
        (("--margin", "0"), "--margin"),
    ],
)
def test_bad_input(python_path: str, tmp_path: Path, options: tuple[str, ...], line: str) -> None:
    done = verify(python_path, tmp_path, "honest = true", *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hasten: ") and line in last


def test_a_script_that_never_trains(python_path: str, tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("import torch\n")
    done = verify(python_path, tmp_path, "honest = true", script=("nothing.py",))
    assert done.returncode == 2
    assert (
        done.stderr
        == "hasten: the script ended without training: no backward pass was seen in it\n"
    )


def test_an_empty_plan(python_path: str, tmp_path: Path) -> None:
    done = verify(python_path, tmp_path, "")
    assert done.returncode == 2
    assert "nothing to verify" in done.stderr
