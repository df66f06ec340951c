"""For the tracker scripts: ends the training when something was logged to a file or the network.

Looks from inside the trial, where the shield hides nothing: a tracker that is on is seen.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

PATTERNS = ("**/events.out.tfevents*", "wandb/**/*", "mlruns/**/*", "mlflow.db*", "lightning_logs")
ITERATIONS = 1_000_000 if "HASTEN_TRACKER_ITERATIONS" not in os.environ else int(
    os.environ["HASTEN_TRACKER_ITERATIONS"]
)  # fmt: skip
_connections: list[object] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        _connections.append(arguments[1])


def logged() -> list[str]:
    """What a tracker has left behind in the working directory so far, and whom it has called."""
    found = [str(path) for pattern in PATTERNS for path in Path.cwd().glob(pattern)]
    return found + [str(address) for address in _connections]


def train(log: Callable[[int, float], None], every: int = 50) -> None:
    """Train, log each iteration, and look whether that did anything."""
    sys.addaudithook(_audit)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for step, (x, y) in enumerate(_batches()):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss.item())
        if step % every == 10 and logged() and "HASTEN_TRACKER_ON" not in os.environ:
            raise RuntimeError(f"logged in a trial: {logged()}")
        if step + 1 == ITERATIONS:
            return


def _batches() -> Iterator[list[torch.Tensor]]:
    data = torch.utils.data.TensorDataset(torch.randn(2048, 64), torch.randn(2048, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    while True:
        yield from loader
