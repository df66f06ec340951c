"""hasten makes PyTorch training faster on the script you already have, and proves it.

For notebooks: `hasten.diagnose(train)`; `plan = hasten.tune(train)`, then
`with hasten.applied(plan): train()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.notebook import Diagnosed, applied, diagnose, tune

__all__ = ["Diagnosed", "applied", "diagnose", "tune"]


def __getattr__(name: str) -> Any:
    """The public functions need torch, which the command line must not wait for."""
    if name in __all__:
        from hasten import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
