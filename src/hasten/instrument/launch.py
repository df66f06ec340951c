"""What the environment of a child must hold so that hasten starts in it. No torch, no script."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hasten.instrument import cache_folder
from hasten.optimisations import discover
from hasten.records import Setting

_ACTIVATE = Path(__file__).parent / "activate"


@dataclass(frozen=True)
class ChildDescription:
    """How hasten behaves in a child.

    Attributes:
        mode: "serve" (does what the parent says), "run" (a plan is applied), "watch" (recorder
            and owned loader at the script's own settings), "call" (an upper layer puts its own
            program in: this one can't import it).
        socket: inherited descriptor of the protocol, in mode "serve".
        setting: what to apply, in mode "run"; in mode "serve" what the process was started for.
        fingerprint: what the plan was made on, in mode "run"; a difference is said on stderr.
        observe: with observers for a diagnosis, in mode "serve".
        entry: "module:function" that is called with `options`, in mode "call".
        options: for it.
        pair: which seeds to start from, in mode "serve": losses and counters are kept from the
            first iteration on; None: nothing is seeded.
        counters_only: with `pair`: only what costs nothing, so that the training can be timed.
        item_seeds: what is random in an item comes from seed, epoch and index.
        report: file to which mode "watch" writes its overhead counts at exit, or None.
    """

    mode: str
    socket: int | None = None
    setting: Setting = field(default_factory=dict)
    fingerprint: dict[str, str] = field(default_factory=dict)
    report: str | None = None
    observe: bool = False
    entry: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    pair: int | None = None
    counters_only: bool = False
    item_seeds: bool = False


def compiled_code() -> Path | None:
    """Where code is kept that trials have compiled, so that the real run starts warm.

    None where nothing can be kept: no home folder, or one that can't be written.
    """
    base = cache_folder.base()
    if base is None:
        return None
    folder = there = base / "inductor"
    while not there.exists():
        there = there.parent
    return folder if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else None


def environment(description: ChildDescription, env: Mapping[str, str]) -> dict[str, str]:
    """`env` with what starts hasten in the next Python interpreter, and in that one only."""
    changed = dict(env)
    if "PYTHONPATH" in env:
        changed["PYTHONPATH"] = os.pathsep.join([str(_ACTIVATE), env["PYTHONPATH"]])
    else:
        changed["PYTHONPATH"] = str(_ACTIVATE)
        changed["HASTEN_NO_PYTHONPATH"] = "1"
    changed.update(_wanted(description.setting))
    changed["HASTEN_CHILD"] = json.dumps(asdict(description))
    # One compile cache for tuning and for the real run, so that the plan starts warm. A trial
    # may be killed in the middle of a compilation, so it never writes into a folder of the user's.
    own = compiled_code()
    if description.mode == "serve":
        changed.pop("TORCHINDUCTOR_CACHE_DIR", None)
    if own is not None:
        changed.setdefault("TORCHINDUCTOR_CACHE_DIR", str(own))
    return changed


def _wanted(setting: Setting) -> dict[str, str]:
    """Variables of optimisations that must be there before the process starts."""
    units = discover()
    wanted: dict[str, str] = {}
    for name in setting:
        if name in units:
            wanted.update(units[name].environment(setting[name]))
    return wanted


def environment_for_run(
    setting: Setting,
    fingerprint: dict[str, str],
    watch: bool,
    env: Mapping[str, str],
    item_seeds: bool = False,
) -> dict[str, str]:
    """The environment in which `hasten run` becomes the script."""
    description = ChildDescription(
        mode="watch" if watch else "run",
        setting=setting,
        fingerprint=fingerprint,
        report=env.get("HASTEN_WATCH_REPORT"),
        item_seeds=item_seeds,
    )
    return environment(description, env)


def environment_for_call(
    entry: str, options: dict[str, Any], env: Mapping[str, str]
) -> dict[str, str]:
    """The environment in which `hasten run --tune` becomes the script."""
    return environment(ChildDescription(mode="call", entry=entry, options=options), env)
