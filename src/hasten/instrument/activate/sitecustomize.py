"""Starts hasten inside a script's own process, before the script's first line.

This folder stands first on PYTHONPATH only while the interpreter of a child starts. The module
puts path and environment back to what the script would see without hasten, lets the
`sitecustomize` that it hides run, and begins. Workers and commands that the script starts see
none of it.
"""

import os
import sys


def _leave_no_trace() -> str | None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in paths if os.path.abspath(entry or ".") != here]
    # An empty entry would mean the current folder: absent is not the same as empty.
    if os.environ.pop("HASTEN_NO_PYTHONPATH", None) or not rest:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    return os.environ.pop("HASTEN_CHILD", None)


def _run_hidden() -> None:
    """Import the sitecustomize that would have been found without ours."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


_description = _leave_no_trace()
_run_hidden()
if _description is not None:
    from hasten.instrument import bootstrap

    bootstrap.begin(_description)
