"""Logs to Weights & Biases the way a training script does, and insists on being online."""

import os
import sys

import torch
import wandb
from tracker_watch import train

if "HASTEN_TRACKER_ON" in os.environ:
    mode = None  # as the environment says
else:
    mode = "online"
    wandb.login(key="0" * 40)
run = wandb.init(project="p", name="n", config={"lr": 1e-3}, mode=mode)
wandb.config.update({"epochs": 3})
wandb.define_metric("loss", summary="min")
wandb.watch(torch.nn.Linear(2, 2))
assert wandb.config.lr == 1e-3 and run.config["epochs"] == 3


def log(step, loss):
    wandb.log({"loss": loss}, step=step)
    if step % 100 == 0:
        run.log({"h": wandb.Histogram([1, 2, 3])})
        run.summary["best"] = loss


train(log)
artifact = wandb.Artifact("model", type="model")
artifact.add_file(sys.argv[0])
run.log_artifact(artifact)
wandb.finish()
