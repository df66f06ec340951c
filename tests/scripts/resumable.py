"""Saves a checkpoint after some epochs, or goes on from one.

Arguments: "save" or "resume", the file, and the optimizer's implementation.
"""

import hashlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FORMS = {"fused": {"fused": True}, "forloop": {"foreach": False}, "usual": {}}


def main():
    mode, path, form = sys.argv[1:]
    torch.manual_seed(0)
    pictures = torch.randn(96, 3, 8, 8)
    data = TensorDataset(pictures, (pictures.mean((1, 2, 3)) > 0).long())
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **FORMS[form])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    if mode == "resume":
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for inputs, target in loader:
            optimizer.zero_grad(set_to_none=False)
            loss = nn.functional.cross_entropy(model(inputs), target)
            loss.backward()
            optimizer.step()
        scheduler.step()
    if mode == "save":
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            path,
        )
        return
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    print(*weights[::50].tolist())
    print([name for name in sys.modules if name.partition(".")[0] == "hasten"])


if __name__ == "__main__":
    main()
