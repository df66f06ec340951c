"""A checkpoint that was saved under a plan loads in plain Python without hasten, and resumes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "scripts" / "resumable.py"
#: Live units together, as far as they go together; those that need an accelerator can't be here.
PLANS = {
    "layout": 'channels-last = true\nfused-optimizer = "fused"\ngrads-to-none = true\n'
    "threads = 1\nflush-denormals = true\nretain-heap = true\n",
    "precision": "amp-bf16 = true\nloader-workers = { workers = 1 }\n"
    'cache-items = { store = "memory" }\nfused-optimizer = "foreach"\n',
    "compiled": "compile = {}\ncompiled-optimizer = true\n",
}


def python(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cwd / "cache")},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hasten:" not in done.stderr
    return done.stdout


def save(plan: str, folder: Path, form: str) -> Path:
    """The checkpoint of a training under this plan."""
    (folder / "plan.toml").write_text(f"schema = 1\n[settings]\n{plan}")
    path = folder / "checkpoint.pt"
    python(
        *("-m", "hasten", "run", "--plan", "plan.toml", str(SCRIPT), "save", str(path), form),
        cwd=folder,
    )
    return path


def resume(path: Path, form: str) -> list[str]:
    """What plain Python makes of it: digest of the weights, some of them, hasten's modules."""
    return python(str(SCRIPT), "resume", str(path), form, cwd=path.parent).splitlines()


def shape(checkpoint: dict[str, Any]) -> Any:
    """Everything about a checkpoint but its numbers."""
    if isinstance(checkpoint, dict):
        return {key: shape(value) for key, value in checkpoint.items()}
    if isinstance(checkpoint, list):
        return [shape(value) for value in checkpoint]
    if isinstance(checkpoint, torch.Tensor):
        return tuple(checkpoint.shape), checkpoint.dtype
    return type(checkpoint), checkpoint if isinstance(checkpoint, (bool, type(None))) else ""


@pytest.mark.parametrize(
    "name",
    ["layout", *(pytest.param(n, marks=pytest.mark.slow) for n in ("precision", "compiled"))],
)
def test_it_resumes(tmp_path: Path, name: str) -> None:
    (plain := tmp_path / "plain").mkdir()
    python(str(SCRIPT), "save", str(plain / "checkpoint.pt"), "usual", cwd=plain)
    (planned := tmp_path / "planned").mkdir()
    path = save(PLANS[name], planned, "usual")
    assert shape(torch.load(path)) == shape(torch.load(plain / "checkpoint.pt"))
    ours, theirs = resume(path, "usual"), resume(plain / "checkpoint.pt", "usual")
    assert ours[2] == theirs[2] == "[]"
    weights = [torch.tensor([float(w) for w in lines[1].split()]) for lines in (ours, theirs)]
    assert torch.isfinite(weights[0]).all()
    bound = 0.15 if name == "precision" else 0.02
    assert (weights[0] - weights[1]).norm() < bound * weights[1].norm()


def test_fused_kernels_find_the_layout_that_they_need(tmp_path: Path) -> None:
    """State in channels_last beside contiguous weights would make them silently wrong."""
    path = save("channels-last = true\n", tmp_path, "fused")
    fused, plain = resume(path, "fused"), resume(path, "forloop")
    one, other = (torch.tensor([float(w) for w in x[1].split()]) for x in (fused, plain))
    assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)
