"""What a plan was made on, in a few short strings that can be compared later."""

from __future__ import annotations

from hasten.records import LoaderFacts, OptimizerFacts, Profile, RootFacts


def fingerprint(profile: Profile) -> dict[str, str]:
    """Loader, model, optimizer, torch and device of a profile, one string each."""
    return {
        "loader": of_loader(profile.loader),
        "model": "; ".join(_root(root) for root in profile.roots) or "none",
        "optimizer": "; ".join(_optimizer(o) for o in profile.optimizers) or "none",
        "torch": profile.torch,
        "device": profile.device,
    }


def of_loader(loader: LoaderFacts | None) -> str:
    """A loader in one string."""
    if loader is None:
        return "none"
    return (
        f"{loader.dataset}, {loader.dataset_items} items, batch size {loader.batch_size}, "
        f"{loader.workers} workers, {loader.collate}"
    )


def _root(root: RootFacts) -> str:
    return f"{root.name}, {root.parameters} parameters in {root.tensors} tensors"


def _optimizer(optimizer: OptimizerFacts) -> str:
    return f"{optimizer.name}, {optimizer.groups} groups, {optimizer.tensors} tensors"
