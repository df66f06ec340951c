"""What the environment of a child must hold so that hasten starts in it. No torch, no script."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hasten.records import Setting

_ACTIVATE = Path(__file__).parent / "activate"


@dataclass(frozen=True)
class ChildDescription:
    """How hasten behaves in a child.

    Attributes:
        mode: "serve" (does what the parent says), "run" (a plan is applied), "watch" (recorder
            and owned loader at the script's own settings).
        socket: inherited descriptor of the protocol, in mode "serve".
        setting: what to apply, in mode "run".
        fingerprint: what the plan was made on, in mode "run"; a difference is said on stderr.
        observe: with observers for a diagnosis, in mode "serve".
        report: file to which mode "watch" writes its overhead counts at exit, or None.
    """

    mode: str
    socket: int | None = None
    setting: Setting = field(default_factory=dict)
    fingerprint: dict[str, str] = field(default_factory=dict)
    report: str | None = None
    observe: bool = False


def cache_folder() -> Path:
    """hasten's folder for what is kept between runs: compiled code above all."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hasten"


def environment(description: ChildDescription, env: Mapping[str, str]) -> dict[str, str]:
    """`env` with what starts hasten in the next Python interpreter, and in that one only."""
    changed = dict(env)
    if "PYTHONPATH" in env:
        changed["PYTHONPATH"] = os.pathsep.join([str(_ACTIVATE), env["PYTHONPATH"]])
    else:
        changed["PYTHONPATH"] = str(_ACTIVATE)
        changed["HASTEN_NO_PYTHONPATH"] = "1"
    changed["HASTEN_CHILD"] = json.dumps(asdict(description))
    # One compile cache for tuning and for the real run, so that the plan starts warm.
    changed.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    return changed


def environment_for_run(
    setting: Setting,
    fingerprint: dict[str, str],
    watch: bool,
    env: Mapping[str, str],
) -> dict[str, str]:
    """The environment in which `hasten run` becomes the script."""
    description = ChildDescription(
        mode="watch" if watch else "run",
        setting=setting,
        fingerprint=fingerprint,
        report=env.get("HASTEN_WATCH_REPORT"),
    )
    return environment(description, env)
