"""Logs scalars, a graph, histograms and a hyperparameter table to TensorBoard."""

import torch
from torch.utils.tensorboard import SummaryWriter
from tracker_watch import train

writer = SummaryWriter()
with SummaryWriter("runs/other", comment="second", flush_secs=1) as other:
    other.add_text("notes", "a second writer")
writer.add_graph(torch.nn.Linear(2, 2), torch.zeros(1, 2))


def log(step, loss):
    writer.add_scalar("loss", loss, step)
    writer.add_scalars("both", {"a": loss, "b": 2 * loss}, step)
    if step % 100 == 0:
        writer.add_histogram("h", torch.randn(16), step)
        writer.flush()


train(log)
writer.add_hparams({"lr": 1e-3}, {"loss": 0.0})
writer.close()
