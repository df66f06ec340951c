"""Experiment trackers are off in a trial: nothing is uploaded, and no time goes into writing logs.

Where a tracker documents a switch, `tracker_environment` sets it. Where it has none, its entry
points are replaced after its import (`patches_for`) by stand-ins that accept everything.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from hasten.instrument import patching

_SWITCHES = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    # Neptune's two clients share no word for "off"; both know "offline", which uploads nothing.
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    # These are read by the callbacks of transformers, not by the trackers themselves.
    "COMET_MODE": "DISABLED",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
}
# Also what reads: the first look at a store makes its folder or database, or calls a server.
_MLFLOW_PREFIXES = (
    *("log_", "set_", "start_", "end_", "create_", "delete_", "register_", "autolog"),
    *("get_", "search_", "update_", "flush_", "enable_system_", "import_checkpoints"),
)
_MLFLOW_NAMES = ("active_run", "last_active_run", "MlflowClient")


def tracker_environment() -> dict[str, str]:
    """The environment variables to add for a trial; they win over the user's."""
    return dict(_SWITCHES)


def patches_for(module_name: str) -> Callable[[ModuleType], None] | None:
    """What to call with a module right after its import, or None when it is no tracker's."""
    return _AFTER_IMPORT.get(module_name)


class Silent:
    """Stands for any object of a tracker: takes every call, attribute and item, and does nothing.

    As text (an identifier of a run, say) it reads ``disabled``. It may be subclassed like the
    class that it replaces.
    """

    def __init__(self, *_: object, **__: object) -> None:
        """Takes whatever the replaced class takes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols that it does not claim, such as pickling
            raise AttributeError(name)
        return Silent()

    def __call__(self, *_: object, **__: object) -> Any:
        return Silent()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getitem__(self, _: object) -> Any:
        return Silent()

    def __setitem__(self, _: object, __: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "disabled"

    def __fspath__(self) -> str:
        return "disabled"


def _nothing(*_: object, **__: object) -> None:
    return None


def _silence_summary_writer(module: ModuleType) -> None:
    writer = getattr(module, "SummaryWriter", None)
    if writer is None:
        return
    for name in vars(writer):
        if name.startswith("add_"):
            patching.replace(writer, name, _nothing)
    patching.replace(writer, "_get_file_writer", _file_writer)


def _file_writer(writer: Any) -> Any:
    # Scripts put files of their own beside the events, so the folder is there as it would be.
    folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
    if folder:
        os.makedirs(folder, exist_ok=True)
    # The writer takes None for closed, and then has nothing to flush.
    writer.file_writer = writer.all_writers = None
    return Silent()


def _silence_mlflow(module: ModuleType) -> None:
    names = [n for n in vars(module) if n.startswith(_MLFLOW_PREFIXES) or n in _MLFLOW_NAMES]
    _replace_by_silence(module, (name for name in names if callable(vars(module)[name])))


def _silence_wandb(module: ModuleType) -> None:
    # A mode given in the script wins over the environment's, and a login asks for a key or the
    # server whatever the mode.
    begin = module.init

    @functools.wraps(begin)
    def init(*args: Any, **kwargs: Any) -> Any:
        return begin(*args, **{**kwargs, "mode": "disabled"})

    patching.replace(module, "init", init)
    for name in ("login", "relogin"):
        if hasattr(module, name):
            patching.replace(module, name, _true)


def _true(*_: object, **__: object) -> bool:
    return True


def _silence_comet(module: ModuleType) -> None:
    names = [name for name in vars(module) if name.endswith("Experiment")]
    _replace_by_silence(module, [*names, "start"])


def _silence_aim(module: ModuleType) -> None:
    _replace_by_silence(module, ["Run"])


def _replace_by_silence(module: ModuleType, names: Iterable[str]) -> None:
    for name in names:
        old = vars(module).get(name)
        if old is not None:
            patching.replace(module, name, Silent if isinstance(old, type) else Silent())


_AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.tensorboard.writer": _silence_summary_writer,
    "tensorboardX.writer": _silence_summary_writer,
    "wandb": _silence_wandb,
    "mlflow": _silence_mlflow,
    "mlflow.pytorch": _silence_mlflow,
    "mlflow.tracking": _silence_mlflow,
    "comet_ml": _silence_comet,
    "aim": _silence_aim,
}
