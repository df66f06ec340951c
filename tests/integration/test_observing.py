"""Observers change nothing, see what is planted, and are gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from diagnosing import SCRIPTS, diagnosed

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


def test_planted_time_is_found_in_its_phase() -> None:
    """Within 3 % or 100 microseconds by the median, which other programs disturb least."""
    planted = {"data": 6.0, "forward": 9.0, "backward": 12.0, "optimizer": 4.0, "other": 5.0}
    phases = diagnosed("planted.py", budget=10.0)["observed"]["phases"]
    # What the loop does besides: calls of a tiny model, some tenths of a millisecond where other
    # programs share the caches.
    for name, milliseconds in planted.items():
        seen = 1000 * phases[name]["low"]
        assert milliseconds <= seen <= 1.03 * milliseconds + 0.8, (name, phases[name])
