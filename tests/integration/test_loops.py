"""Loops are recognised by what happens in them; one tiny real program each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten.environment import look
from hasten.instrument.shield.launch import ShieldMode
from hasten.optimisations import discover
from hasten.records import BlockDone, Profile, RunBlock, Watch
from hasten.tuning.process import Child, Gone

SCRIPTS = Path(__file__).parent.parent / "scripts"


def watch(name: str, *settings: dict) -> tuple[Profile, list[BlockDone]]:
    """Profile of a script, then one block under each setting."""
    child = Child((str(SCRIPTS / name),), ShieldMode.NONE, print, cwd=str(SCRIPTS))
    try:
        child.start()
        profile = child.ask(Watch(12, 60.0), 120.0)
        assert isinstance(profile, Profile), profile
        blocks = []
        for setting in settings:
            block = child.ask(RunBlock(setting, 4, 1), 120.0)
            assert isinstance(block, BlockDone), block
            blocks.append(block)
        return profile, blocks
    except Gone as gone:
        pytest.fail(f"{gone}: {gone.tail}")
    finally:
        child.close()


def test_gan_has_two_roots_and_two_optimizers():
    profile, (block,) = watch("loop_gan.py", {"amp-bf16": True, "fused-optimizer": "fused"})
    assert profile.border == "loader"
    assert sorted(root.calls for root in profile.roots) == [1.0, 3.0]
    assert [optimizer.steps for optimizer in profile.optimizers] == [1.0, 1.0]
    assert block.no_effect == {}


def test_lbfgs_without_loader_goes_from_step_to_step():
    profile, _ = watch("loop_lbfgs.py", {})
    assert (profile.border, profile.loader) == ("step", None)
    assert profile.optimizers[0].closure
    assert profile.roots[0].calls > 1
    # What the closure does inside the step is the model's time, not the optimizer's.
    assert profile.phases["forward"] > 0 < profile.phases["backward"]


def test_memory_mapped_batches_and_accumulation():
    profile, (block,) = watch("loop_memmap.py", {"amp-bf16": True})
    assert (profile.border, profile.loader) == ("step", None)
    assert [root.name for root in profile.roots] == ["Small"]
    assert profile.roots[0].calls == pytest.approx(2.0, abs=0.2)
    assert block.no_effect == {} and block.losses_finite


def test_without_an_optimizer_an_iteration_is_a_backward_pass():
    profile, (block,) = watch("loop_by_hand.py", {"amp-bf16": True})
    assert (profile.border, profile.loader, profile.optimizers) == ("step", None, ())
    assert [root.name for root in profile.roots] == ["Sequential"]
    assert block.no_effect == {}


def test_own_autocast_scaler_and_accumulation_are_seen():
    profile, _ = watch("loop_own_amp.py", {})
    assert profile.roots[0].own_autocast == "bfloat16"
    assert profile.own_scaler
    assert profile.iterations_per_step == pytest.approx(4.0, abs=0.5)


def test_own_compile_is_seen():
    profile, (block,) = watch("loop_own_compile.py", {"fused-optimizer": "foreach"})
    assert [root.own_compile for root in profile.roots] == [True]
    assert block.no_effect == {}


def test_a_model_inside_a_compiled_function_is_left_alone_and_the_reason_is_told():
    profile, (block,) = watch("loop_compiled_function.py", {"fused-optimizer": "fused"})
    assert (profile.own_compile, profile.roots, block.no_effect) == (True, (), {})
    units = discover()
    for name in ("compile", "amp-bf16"):
        assert "compiles a function" in units[name].applies(profile, look()).reason


def test_next_on_an_iterator_with_batch_sampler_and_dict_batches():
    profile, (block,) = watch("loop_next.py", {"loader-workers": {"workers": 1}})
    assert profile.loader is not None and profile.loader.owned
    assert profile.loader.collate == "collate"
    assert block.no_effect == {}


def test_iterable_dataset_is_watched_and_not_taken_over():
    profile, _ = watch("loop_iterable.py", {})
    assert profile.border == "loader"
    assert profile.loader is not None
    assert (profile.loader.kind, profile.loader.owned) == ("iterable", False)


def test_validation_is_left_alone_and_its_iterations_are_void():
    profile, (block,) = watch("loop_validation_first.py", {"amp-bf16": True})
    assert profile.loader is not None and profile.loader.batch_size == 10
    assert [root.name for root in profile.roots] == ["Sequential"]
    assert profile.other_loaders >= 1
    assert block.no_effect == {}


def test_a_loader_built_anew_in_each_epoch_is_the_same_loop():
    settings = [{}] * 6 + [{"loader-workers": {"workers": 1}}] * 6
    profile, blocks = watch("loop_new_loader.py", *settings)
    assert profile.loader is not None and profile.loader.length == 12
    assert [block.no_effect for block in blocks] == [{}] * 12
    assert blocks[-1].total_iterations > 5 * 12
    assert sum(block.void for block in blocks) > 0


@pytest.mark.parametrize("careless", ["", "1"])
def test_a_loader_for_validation_built_alike_is_not_the_training_loader(monkeypatch, careless):
    monkeypatch.setenv("CARELESS", careless)  # validates with gradients and in training mode
    profile, blocks = watch("loop_like_validation.py", *[{}] * 12)
    blocks = blocks[6:] if careless else blocks  # after the first validation it is known
    if not careless:
        assert profile.loader is not None and profile.loader.dataset_items == 160
        assert profile.iterations_per_step == pytest.approx(1.0, abs=0.2)
    assert all(block.phases["backward"] > 0 for block in blocks)


def test_gradients_without_a_backward_pass():
    profile, (block,) = watch("loop_functional.py", {"fused-optimizer": "fused"})
    assert (profile.border, profile.roots) == ("loader", ())
    assert profile.iterations_per_step == pytest.approx(1.0, abs=0.2)
    assert profile.loader is not None and profile.loader.dataset_items == 160
    assert (block.iterations, block.no_effect) == (4, {})


def test_a_script_that_never_trains_says_so():
    child = Child((str(SCRIPTS / "loop_never.py"),), ShieldMode.NONE, print, cwd=os.getcwd())
    child.start()
    with pytest.raises(Gone) as gone:
        child.ask(Watch(12, 60.0), 120.0)
    assert gone.value.kind == "ended"
    assert gone.value.ended is not None and gone.value.ended.backwards == 0


def test_what_always_happens_is_no_reason_to_leave_an_iteration_out():
    profile, (block,) = watch("loop_saves_always.py", {"fused-optimizer": "fused"})
    assert len(profile.iteration_seconds) == 12
    assert (profile.iterations_per_epoch, block.iterations, block.no_effect) == (1, 4, {})
