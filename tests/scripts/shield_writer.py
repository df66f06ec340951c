"""Writes in every way a training script does: checkpoints with a rename, a log, commands, atexit.

    shield_writer.py [--steps N] [--pause S] [--torch] [--shared-memory]

Runs in the folder that it changes and checks after each step that it reads what it wrote.
"""

import argparse
import atexit
import os
import subprocess
import sys
import time
from pathlib import Path


def save(path: str, step: int, use_torch: bool) -> None:
    if use_torch:
        import torch

        torch.save({"step": torch.tensor(step)}, path + ".tmp")
    else:
        with open(path + ".tmp", "w") as file:
            file.write(f"step {step}\n" * 1000)
    os.replace(path + ".tmp", path)


def load(path: str, use_torch: bool) -> int:
    if use_torch:
        import torch

        return int(torch.load(path)["step"])
    return int(Path(path).read_text().split()[1])


def one_step(step: int, options: argparse.Namespace) -> None:
    path = f"checkpoints/{step}.pt"
    save(path, step, options.torch)
    assert load(path, options.torch) == step
    with open("train.log", "a") as log:
        print("step", step, file=log)
    assert Path("train.log").read_text().endswith(f"step {step}\n")
    subprocess.run(["cp", path, "best.pt"], check=True)
    subprocess.run(f"echo saved {step} >> commands.log; rm -f victim.txt", shell=True, check=True)
    assert os.path.getsize("best.pt") == os.path.getsize(path)
    assert not os.path.exists("victim.txt")
    for old in sorted(Path("checkpoints").glob("*.pt"))[:-2]:
        old.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--shared-memory")
    options = parser.parse_args()
    atexit.register(lambda: Path("finished.txt").write_text("at exit"))
    subprocess.Popen(["sleep", "300"])
    if options.shared_memory:
        from multiprocessing.shared_memory import SharedMemory

        block = SharedMemory(options.shared_memory, create=True, size=4096)
        block.buf[0] = 1
    os.makedirs("checkpoints", exist_ok=True)
    os.rename("to_rename.txt", "renamed.txt")
    os.chmod("renamed.txt", 0o600)
    for step in range(1, options.steps + 1):
        one_step(step, options)
        time.sleep(options.pause)
    print("wrote", len(os.listdir("checkpoints")), "argv", sys.argv[1:], flush=True)


if __name__ == "__main__":
    main()
