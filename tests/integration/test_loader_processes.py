"""Other start methods, and what remains when a script ends with pools alive."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from test_loader_kit import Numbers, owned, seams
from torch.utils.data import DataLoader

SCRIPT = Path(__file__).parents[1] / "scripts" / "loader_exit.py"


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("end", 0),
        ("exception", 1),
        pytest.param("exit", 7, marks=pytest.mark.slow),
        pytest.param("close", 0, marks=pytest.mark.slow),
    ],
)
def test_a_script_that_ends_with_pools_alive(way: str, code: int) -> None:
    mark = f"{os.getpid()}-{way}"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LOADER_EXIT_MARK": mark},
    )
    assert (done.stdout, done.returncode) == ("ready\n", code)
    expected = "the script's own" if way == "exception" else ""
    assert done.stderr.strip().splitlines()[-1:] == (
        [f"ValueError: {expected}"] if expected else []
    )
    end = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LOADER_EXIT_MARK") == mark:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_spawned_workers() -> None:
    context = multiprocessing.get_context("spawn")
    data = Numbers(16, "epoch")
    loader: DataLoader[Any] = DataLoader(
        data, 2, num_workers=1, multiprocessing_context=context, shuffle=True
    )
    torch.manual_seed(0)
    plain = [
        int(i) for batch in DataLoader(data, 2, shuffle=True, num_workers=1) for i in batch[:, 0]
    ]
    torch.manual_seed(0)
    with seams() as seam:
        seen = []
        for place, batch in enumerate(loader):
            seen += batch[:, 0].tolist()
            if place == 1:
                owned(seam, loader).configure(1, 1, False)
            if place == 4:
                owned(seam, loader).configure(0, None, False)
        assert owned(seam, loader).facts().start_method == "spawn"
    assert seen == plain


def test_a_loader_inside_a_worker_is_left_alone() -> None:
    with seams() as seam:
        loader: DataLoader[Any] = DataLoader(Nested(4), None, num_workers=1)
        assert [b.tolist() for b in loader] == [[0, 1]] * 4
        assert len(seam._loaders) == 1


class Nested(Numbers):
    def __getitem__(self, index: int) -> Any:
        (batch,) = DataLoader(Numbers(2), 2)
        return batch
