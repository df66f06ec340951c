"""Observers change nothing, see what is planted, and are gone afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from diagnosing import SCRIPTS

from hasten.diagnosis import Examined, Observed
from hasten.instrument.shield.launch import ShieldMode
from hasten.protocol import Message
from hasten.records import BlockDone, Examine, Observe, RunBlock, Watch
from hasten.tuning.process import Child, Gone


def follow(child: Child, *commands: Message) -> list[Message]:
    """Answers to commands, then blocks until the script ends."""
    child.start()
    answers = [child.ask(command, 120.0) for command in commands]
    with pytest.raises(Gone) as gone:
        while True:
            assert isinstance(child.ask(RunBlock({}, 2, 0), 60.0), BlockDone)
    assert gone.value.kind == "ended", gone.value.tail
    return answers


def test_losses_are_equal_to_the_bit_and_events_have_their_lines(tmp_path: Path) -> None:
    script = SCRIPTS / "observed_losses.py"
    plain, seen = tmp_path / "plain", tmp_path / "seen"
    subprocess.run([sys.executable, str(script), str(plain)], check=True, timeout=120)
    child = Child((str(script), str(seen)), ShieldMode.NONE, print, cwd=str(tmp_path), observe=True)
    try:
        _, observed, examined = follow(child, Watch(4, 20.0), Observe(12, 30.0), Examine(1.0))
    finally:
        child.close()
    assert seen.read_text() == plain.read_text()
    assert isinstance(observed, Observed) and isinstance(examined, Examined)
    lines = script.read_text().splitlines()
    for kind in ("backward", "zero_grad", "scaler_step", "unscale", "clip", "scheduler", "save"):
        (event,) = observed.all(kind)
        assert event.place is not None and event.place.file == str(script)
        assert lines[event.place.line - 1].strip() == event.place.code
    assert observed.all("zero_grad")[0].observed == observed.iterations
    kinds = [moment.kind for moment in observed.sequences[-1]]
    wanted = ["zero_grad", "scale", "backward", "unscale", "clip", "step", "scaler_step"]
    assert [kind for kind in kinds if kind in wanted] == wanted
    stretches = {stretch.what for stretch in observed.stretches}
    assert {"validation", "saving", "epoch border"} <= stretches


_PLANTED = """
import json, runpy, sys
import torch
from hasten.instrument.observe.conductor import ObservingConductor, fine

def program(conductor):
    for _ in range(3):
        yield
    pairs = []
    for _ in range(150):
        conductor.tell_ended((yield))
        pairs.append([sys.modules["__main__"].rows[-1], fine(conductor.recorder.used)])
    print(json.dumps(pairs))
    conductor.stop_observing()
    sys.exit()

ObservingConductor(program).install()
runpy.run_path(sys.argv[1], run_name="__main__")
"""
_BUSY = ("data", "forward", "backward", "optimizer", "other")


def test_planted_time_is_found_in_its_phase() -> None:
    """Each planted millisecond counts as one in its own phase and as none in another, within 3 %.

    By processor time, which other programs don't take away, against what the script itself counted
    in the same iteration. What it does besides is the same in all of them: the intercept.
    """
    script = str(SCRIPTS / "planted.py")
    command = [sys.executable, "-c", _PLANTED, script]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    pairs = json.loads(result.stdout)
    planted = np.array([[row[name] for name in _BUSY] + [1.0] for row, _ in pairs])
    for index, name in enumerate(_BUSY):
        seen = np.array([1000 * phases[name] for _, phases in pairs])
        slopes = _slopes(planted, seen)
        assert slopes[index] == pytest.approx(1.0, abs=0.03), name
        assert np.abs(np.delete(slopes, [index, 5])).max() < 0.03, name
        assert 0.0 <= slopes[5] < 2.0, name
    assert not any(phases["copy"] for _, phases in pairs)


def _slopes(planted: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """By least squares without the tenth of the iterations that fits worst."""
    slopes = np.linalg.lstsq(planted, seen, rcond=None)[0]
    off = np.abs(planted @ slopes - seen)
    kept = off <= np.quantile(off, 0.9)
    return np.asarray(np.linalg.lstsq(planted[kept], seen[kept], rcond=None)[0])


_CLEAN = """
import json, runpy, sys
import torch
from hasten.instrument.observe.conductor import ObservingConductor, fine

def program(conductor):
    conductor.log.observing = True
    for _ in range(5):
        yield
    seen = []
    for _ in range(40):
        iteration = yield
        conductor.tell_ended(iteration)
        if not iteration.void:
            seen.append(fine(conductor.recorder.used))
    conductor.stop_observing()
    made, counts = sys.modules["__main__"].made, []
    for held in (False, True):
        conductor.seams.loader.hold(held)
        for _ in range(2):
            yield
        before = len(made)
        for _ in range(10):
            yield
        counts.append(len(made) - before)
    print(json.dumps([seen, counts]))
    sys.stdout.flush()
    sys.exit()

ObservingConductor(program).install()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_clean_loop_has_no_other_time_and_free_data_is_free() -> None:
    """By processor time, where the model is large against its loss; and no batch is made."""
    command = [sys.executable, "-c", _CLEAN, str(SCRIPTS / "ceiling.py"), "--memory"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    seen, counts = json.loads(result.stdout)
    total = sum(sum(phases.values()) for phases in seen)
    assert sum(phases["other"] for phases in seen) < 0.02 * total
    assert counts == [10, 0]
