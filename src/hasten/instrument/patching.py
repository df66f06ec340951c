"""The only place that assigns to foreign attributes, and the way back from each assignment.

Everything that hasten changes in torch or in the standard library goes through `replace`, so that
one call undoes it all, last in first out. An attribute that was absent (an inherited method, say)
is absent again afterwards. When something else has been laid over a replacement in the meantime,
undoing ours would remove theirs: it is left alone and reported. A replacement of ours that may lie
over another one of ours calls `patch.old`, which follows when the lower one goes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

_ABSENT = object()


@dataclass(eq=False)
class Patch:
    """One assignment: `owner.name` held `old` (or nothing) and now holds `new`."""

    owner: Any
    name: str
    old: Any
    new: Any


_patches: list[Patch] = []


def _own(owner: Any, name: str) -> Any:
    """What `owner` itself holds under `name`, not what it inherits."""
    try:
        return vars(owner).get(name, _ABSENT)
    except TypeError:  # no __dict__: slots or a built-in instance
        return getattr(owner, name, _ABSENT)


def replace(owner: Any, name: str, new: Any) -> Patch:
    """Assign `owner.name = new` and remember how to undo it.

    Args:
        owner: a module, class or instance.
        name: the attribute.
        new: what it holds from now on.

    Returns:
        The record to give to `restore`.
    """
    patch = Patch(owner, name, _own(owner, name), new)
    if isinstance(owner, ModuleType) and isinstance(new, FunctionType):
        _take_name(owner, name, new)
    setattr(owner, name, new)
    _patches.append(patch)
    return patch


def _take_name(module: ModuleType, name: str, new: FunctionType) -> None:
    """Let a function of ours go by the name of the one that it stands for.

    A script may hand `torch.save` to another process: it is pickled by its name, under which
    there must be the very same function here. And `inspect.signature` is to tell the real one.
    """
    if "<locals>" in new.__qualname__ and new.__module__.startswith("hasten."):
        new.__module__, new.__name__, new.__qualname__ = module.__name__, name, name
        new.__wrapped__ = getattr(module, name, None)  # type: ignore[attr-defined]


def original(owner: Any, name: str) -> Any:
    """What `owner.name` was before hasten's first replacement of it.

    Raises:
        AttributeError: neither replaced nor there.
    """
    for patch in _patches:
        if patch.owner is owner and patch.name == name and patch.old is not _ABSENT:
            return patch.old
    return getattr(owner, name)


def restore(patch: Patch) -> str | None:
    """Undo one replacement.

    Returns:
        None when undone, else one line that says what lies over it now.
    """
    if patch not in _patches:
        return None
    _patches.remove(patch)
    above = [p for p in _patches if p.owner is patch.owner and p.name == patch.name]
    if any(p.old is patch.new for p in above):  # ours as well: it goes on from what lies below
        next(p for p in above if p.old is patch.new).old = patch.old
        return None
    if _own(patch.owner, patch.name) is not patch.new:
        owner = getattr(patch.owner, "__name__", type(patch.owner).__name__)
        return f"{owner}.{patch.name} was replaced again by other code and is left as it is"
    if patch.old is _ABSENT:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.old)
    return None


def restore_all() -> list[str]:
    """Undo every replacement, last in first out; returns a line for each that could not be."""
    return [line for patch in reversed(_patches[:]) if (line := restore(patch)) is not None]


def active() -> list[Patch]:
    """The replacements that are in force."""
    return list(_patches)
