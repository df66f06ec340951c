"""Units on real programs in a child: what the profile tells of them, and that they take effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.environment import look
from hasten.instrument.shield.launch import ShieldMode
from hasten.optimisations import find
from hasten.records import BlockDone, Profile, Proof, Prove, RunBlock, Watch
from hasten.tuning.process import Child, Gone

SCRIPTS = Path(__file__).parent.parent / "scripts"


def start(name: str, *arguments: str) -> tuple[Child, Profile]:
    """A child at its training loop, watched."""
    child = Child((str(SCRIPTS / name), *arguments), ShieldMode.NONE, print, cwd=str(SCRIPTS))
    child.start()
    profile = child.ask(Watch(12, 60.0), 120.0)
    assert isinstance(profile, Profile), profile
    return child, profile


CASES: list[tuple[str, tuple[str, ...], str, Any]] = [
    ("unit_zeros.py", (), "grads-to-none", True),
    ("unit_images.py", (), "channels-last", True),
    ("unit_denormals.py", (), "flush-denormals", True),
    ("unit_debug.py", (), "debug-off", ["anomaly"]),
    ("unit_debug.py", ("profiler",), "debug-off", ["profiler"]),
    ("unit_autocast.py", (), "autocast-off", True),
    ("unit_rows.py", (), "batched-fetch", True),
]


@pytest.mark.parametrize(("script", "arguments", "name", "value"), CASES)
def test_where_it_applies_it_is_proven_and_takes_effect(
    script: str, arguments: tuple[str, ...], name: str, value: Any
) -> None:
    child, profile = start(script, *arguments)
    try:
        assert find(name).applies(profile, look()).values == (value,)
        proof = child.ask(Prove(name, {name: value}), 120.0)
        assert isinstance(proof, Proof) and proof.passed, proof
        for setting in ({name: value}, {}, {name: value}):
            block = child.ask(RunBlock(setting, 4, 1), 120.0)
            assert isinstance(block, BlockDone) and block.no_effect == {}, block
            assert block.losses_finite
    finally:
        child.close()


def test_a_batch_fetched_between_forward_and_backward_hides_no_gradient() -> None:
    """There the border lies between a call and its backward pass (llama2.c trains like this)."""
    child, _ = start("loop_ahead.py")
    try:
        proof = child.ask(Prove("amp-bf16", {"amp-bf16": True}), 120.0)
        assert isinstance(proof, Proof) and proof.passed, proof
        assert proof.figure > 0.0
    finally:
        child.close()


def test_a_parameter_that_is_left_out_is_named() -> None:
    child, profile = start("unit_branches.py")
    child.close()
    reason = find("grads-to-none").applies(profile, look()).reason
    assert reason.startswith("`layers.often.weight` gets no gradient in some iterations")


def test_a_view_in_the_model_fails_as_a_candidate() -> None:
    """The child ends with the script's own exception; the next one goes on without the unit."""
    child, profile = start("unit_viewing.py")
    try:
        assert find("channels-last").applies(profile, look())
        with pytest.raises(Gone) as gone:
            answer = child.ask(RunBlock({"channels-last": True}, 4, 1), 120.0)
            pytest.fail(f"it ran: {answer}")
        assert "view size is not compatible" in gone.value.tail
    finally:
        child.close()


def test_a_plain_script_has_nothing_to_turn_off() -> None:
    child, profile = start("steady.py")
    child.close()
    assert profile.debug == () and profile.zero_fills == 0 and profile.denormals == 0
    assert profile.float32_precision == "highest" and not profile.cudnn_benchmark
    for name in ("debug-off", "grads-to-none", "flush-denormals", "autocast-off", "channels-last"):
        assert not find(name).applies(profile, look()), name
