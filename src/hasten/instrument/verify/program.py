"""What a child does for `verify`: put a setting into force, and follow the training."""

from __future__ import annotations

from collections.abc import Generator

from hasten.instrument.conductor import Conductor
from hasten.instrument.recorder import Iteration
from hasten.instrument.verify.conductor import FollowingConductor
from hasten.optimisations import discover
from hasten.verification import Follow, Followed


def obey(conductor: Conductor, command: Follow) -> Generator[None, Iteration, Followed]:
    """Follow until enough iterations have passed; a script that ends before is told at its exit."""
    assert isinstance(conductor, FollowingConductor), "the child was not started to be followed"
    seams = conductor.seams
    assert seams is not None
    if not conductor.marked:  # first: what comes into force mustn't move anything by itself
        conductor.mark()
    if command.setting != seams.setting:
        seams.apply(_usable(conductor, command.setting))
    while command.iterations is None or len(conductor.ledger.rows) < command.iterations:
        yield
        conductor.losses.clear()
    return conductor.followed(command.iterations, ended=False)


def _usable(conductor: FollowingConductor, setting: dict[str, object]) -> dict[str, object]:
    """The part of a setting whose seams are there; the rest is told."""
    units = discover()
    seams = conductor.seams
    usable = {
        n: v for n, v in setting.items() if not units[n].needs or getattr(seams, units[n].needs)
    }
    for name in sorted(set(setting) - set(usable)):
        conductor.notes.append(f"{name} can't be applied here: its seam was not found")
    return usable
