"""Observers change nothing, see what is planted, and are gone afterwards."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from diagnosing import SCRIPTS

from hasten.diagnosis import Examined, Observed
from hasten.instrument.shield.launch import ShieldMode
from hasten.records import BlockDone, Examine, Message, Observe, RunBlock, Watch
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


def test_planted_time_is_found_in_its_phase(tmp_path: Path) -> None:
    """Within 3 % and a millisecond of what the script itself timed in the same iterations.

    The millisecond is for what it does besides, on a machine whose cores are all taken by others.
    """
    path, watched = tmp_path / "spent", 8
    argv = (str(SCRIPTS / "planted.py"), str(path))
    child = Child(argv, ShieldMode.NONE, print, cwd=str(tmp_path), observe=True)
    try:
        child.start()
        child.ask(Watch(watched, 30.0), 120.0)
        observed = child.ask(Observe(50, 30.0), 120.0)
        child.ask(RunBlock({}, 15, 0), 120.0)  # so that it writes
    finally:
        child.close()
    assert isinstance(observed, Observed) and observed.iterations == 50
    # The loop is recognised at the second backward pass; the third iteration is the first one.
    rows = json.loads(path.read_text())[2 + watched :][:50]
    for name in ("data", "forward", "backward", "optimizer", "other"):
        truth = statistics.fmean(row[name] for row in rows)
        seen = 1000 * observed.phases[name].mean
        assert seen == pytest.approx(truth, rel=0.03, abs=1.0), name
