"""Something that torch's fetchers get in place of the script's dataset, and that passes for it.

Attributes are read from the dataset and written to it, and `isinstance` says what it says of the
dataset. What a stand-in keeps for itself is under one name that no dataset has.
"""

from __future__ import annotations

from typing import Any

_OWN = "_hasten_items"


class StandIn:
    """Stands in for a dataset; subclasses say what becomes of its items."""

    def __init__(self, dataset: Any, *own: Any) -> None:
        """Stand in for `dataset`; `own` is for the subclass."""
        object.__setattr__(self, _OWN, (dataset, *own))

    def _all(self) -> tuple[Any, ...]:
        """The dataset and what belongs to the subclass."""
        found: tuple[Any, ...] = object.__getattribute__(self, _OWN)
        return found

    def __len__(self) -> int:
        return len(object.__getattribute__(self, _OWN)[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, _OWN)[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, _OWN)[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, _OWN)[0], name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(object.__getattribute__(self, _OWN)[0])


def several(dataset: Any, indices: Any) -> list[Any]:
    """Items of a dataset as torch's fetchers ask for them."""
    together = getattr(dataset, "__getitems__", None)
    if together:
        found: list[Any] = together(indices)
        return found
    return [dataset[index] for index in indices]
