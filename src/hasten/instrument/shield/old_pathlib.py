"""Python 3.10's pathlib keeps its own references to the file functions, in a class."""

import pathlib
from typing import Any

from hasten.instrument import patching


def replace_in_old_pathlib(name: str, native: Any, new: Any) -> None:
    """Replaces a function there as well; does nothing on later versions of Python."""
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and getattr(accessor, name, None) is native:
        patching.replace(accessor, name, staticmethod(new))
