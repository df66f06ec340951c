"""The plan: the setting that won, with its evidence, as a TOML file that can be read and shared."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from hasten.environment import Environment, look
from hasten.errors import HastenError
from hasten.optimisations import discover
from hasten.records import Ratio, Setting, Tried

#: The newest layout of the file that this version reads, and the one that it writes.
SCHEMA = 1
#: The plan's name, beside the script.
FILE_NAME = "hasten.toml"
#: What may not differ from what the plan was made on, since its evidence would say nothing.
BLOCKING = ("device", "torch")

_HEADER = """\
A plan by hasten: what makes this training faster on the machine named below.
Apply it with:  hasten run {script}
Settings may be changed or removed by hand."""


def _version() -> str:
    return importlib.metadata.version("hasten")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Plan:
    """What `hasten tune` found, and what it was found on.

    Attributes:
        script: the script's path, or its module's name after "-m ".
        arguments: what the script was started with.
        setting: values of optimisations by name.
        evidence: all that was tried.
        confirmed: the end-to-end gain, by two processes in turns; None when not measured.
        fingerprint: loader, model, optimizer, torch and device as a string each.
        hasten: the version that wrote it.
        created: when, in UTC.
        item_seeds: what is random in an item comes from seed, epoch and index.
        verified: losses of runs from several seeds, in short; empty when there were none.
    """

    script: str
    arguments: tuple[str, ...]
    setting: Setting
    evidence: tuple[Tried, ...] = ()
    confirmed: Ratio | None = None
    fingerprint: dict[str, str] = field(default_factory=dict)
    hasten: str = field(default_factory=_version)
    created: str = field(default_factory=_now)
    schema: int = SCHEMA
    item_seeds: bool = False
    verified: dict[str, Any] = field(default_factory=dict)


class Difference(NamedTuple):
    """Something that is no longer as it was when the plan was made."""

    key: str
    then: str
    now: str

    @property
    def blocking(self) -> bool:
        """Whether the plan may not be applied without being told so."""
        return self.key in BLOCKING

    def __str__(self) -> str:
        return f"{self.key} was {self.then}, is now {self.now}"


def differences(plan: Plan, now: Mapping[str, str]) -> list[Difference]:
    """What of a plan's fingerprint differs from `now`, among the keys that both hold."""
    return [
        Difference(key, then, now[key])
        for key, then in plan.fingerprint.items()
        if key in now and not _same(key, then, now[key])
    ]


def _same(key: str, then: str, now: str) -> bool:
    if key == "torch" and not ("+" in then and "+" in now):
        # torch itself names its build (2.14.1+cu130), its package's metadata may not.
        return then.partition("+")[0] == now.partition("+")[0]
    return then == now


def machine_fingerprint(device: str, environment: Environment | None = None) -> dict[str, str]:
    """The part of a fingerprint that can be known without starting the script.

    Args:
        device: where the model trains: "cpu", "cuda" or another of torch's device types.
        environment: the machine; looked at when None.
    """
    machine = environment or look()
    kind = device.partition(":")[0]
    if kind == "cpu":
        names = f"{machine.cpu}, {machine.cores} core{'s' if machine.cores > 1 else ''}"
    elif kind == "cuda":
        names = ", ".join(gpu.name for gpu in machine.gpus) or "no GPU found"
    else:
        names = machine.cpu
    return {"torch": machine.torch or "not installed", "device": f"{kind}: {names}"}


# --- reading ---------------------------------------------------------------------------------


def load(path: Path) -> Plan:
    """Read a plan.

    Raises:
        HastenError: it is missing, malformed, of a newer hasten, or holds a setting that this
            version doesn't know.
    """
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except FileNotFoundError:
        raise HastenError(f"no plan at {path}: make one with hasten tune") from None
    except OSError as error:
        raise HastenError(f"the plan {path} can't be read: {error.strerror}") from error
    except ParseError as error:
        raise HastenError(f"{path}, line {error.line}: not valid TOML: {error}") from error
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise HastenError(f"{path}: not valid TOML: {error}") from error
    _check_schema(document.get("schema"), path)
    try:
        return _plan(document, path)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise HastenError(f"{path}: not a plan of hasten's: {_what(error)}") from error


def _what(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _check_schema(schema: Any, path: Path) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise HastenError(f"{path}: not a plan of hasten's: no schema number")
    if schema > SCHEMA:
        raise HastenError(
            f"{path} was written by a newer hasten (schema {schema}, this one reads up to "
            f"{SCHEMA}): upgrade hasten, or make a new plan with hasten tune"
        )


def _plan(document: dict[str, Any], path: Path) -> Plan:
    made = _table(document, "made")
    fingerprint = _table(document, "fingerprint")
    confirmed = document.get("confirmed")
    return Plan(
        script=str(made.get("script", "")),
        arguments=tuple(str(argument) for argument in made.get("arguments", [])),
        setting=_checked(_table(document, "settings"), path),
        evidence=tuple(_tried(entry) for entry in document.get("evidence", [])),
        confirmed=Ratio(*(float(confirmed[k]) for k in ("ratio", "low", "high")))
        if confirmed
        else None,
        fingerprint={key: str(value) for key, value in fingerprint.items()},
        hasten=str(made.get("hasten", "")),
        created=str(made.get("created", "")),
        item_seeds=_switch(document, "item_seeds"),
        verified=dict(_table(document, "verified")),
    )


def _switch(document: dict[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} should be true or false")
    return value


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{name} should be a table")
    return table


def _checked(setting: dict[str, Any], path: Path) -> Setting:
    """The settings, each one known and with a value that it takes."""
    units = discover()
    for name, value in setting.items():
        if name not in units:
            close = difflib.get_close_matches(name, units, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(units)}"
            raise HastenError(f"{path}: unknown setting {name}: {hint}")
        try:
            units[name].check(value)
        except (ValueError, TypeError) as error:
            raise HastenError(f"{path}: {name} = {value!r}: expected {error}") from error
    return setting


def _tried(entry: dict[str, Any]) -> Tried:
    fields = [f.name for f in dataclasses.fields(Tried)]
    absent: dict[str, Any] = dict.fromkeys(("value", "ratio", "low", "high"))
    return Tried(**(absent | {name: entry[name] for name in fields if name in entry}))


# --- writing ---------------------------------------------------------------------------------


def writable(path: Path) -> None:
    """Make sure, before long work, that a plan can be written to `path`; nothing remains.

    Raises:
        HastenError: it can't, and why.
    """
    target = path.resolve()
    problem = None
    if target.is_dir():
        problem = "it is a directory"
    elif target.exists() and not stat.S_ISREG(target.stat().st_mode):
        problem = "it is not a regular file"
    elif target.exists() and not os.access(target, os.W_OK):
        problem = "it may not be written"
    elif not target.parent.is_dir():
        problem = f"there is no directory {target.parent}"
    else:
        problem = _refusal(target.parent)
    if problem:
        raise HastenError(f"the plan can't be written to {path}: {problem}; see --output")


def _refusal(folder: Path) -> str | None:
    """Why no file can be made in a folder. Permissions alone don't tell: it is tried."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} may not be written ({error.strerror})"


def dump(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all.

    Raises:
        HastenError: it can't be written.
    """
    writable(path)
    text = tomlkit.dumps(_document(plan))
    try:
        _replace(path.resolve(), text)
    except OSError as error:
        raise HastenError(f"the plan can't be written to {path}: {error.strerror}") from error


def _replace(target: Path, text: str) -> None:
    """Put a new file in the place of `target` in one step."""
    handle, temporary = tempfile.mkstemp(prefix=".hasten-", suffix=".toml", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those of any new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _document(plan: Plan) -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    for line in _HEADER.format(script=plan.script).splitlines():
        document.add(tomlkit.comment(line))
    document.add("schema", tomlkit.item(plan.schema))
    if plan.item_seeds:
        seeded = tomlkit.item(True)
        seeded.comment("random numbers of an item come from seed, epoch and index")
        document.add("item_seeds", seeded)
    document.add("settings", _settings(plan))
    if plan.confirmed is not None:
        document.add("confirmed", _confirmed(plan.confirmed))
    if plan.verified:
        verified = tomlkit.table()
        verified.comment("losses with and without the plan, from several seeds")
        verified.update(plan.verified)
        document.add("verified", verified)
    fingerprint = tomlkit.table()
    fingerprint.comment("what the plan was made on")
    fingerprint.update(plan.fingerprint)
    document.add("fingerprint", fingerprint)
    made = {"hasten": plan.hasten, "created": plan.created, "script": plan.script}
    document.add("made", tomlkit.item(made | {"arguments": list(plan.arguments)}))
    if plan.evidence:
        document.add("evidence", _evidence(plan.evidence))
    return document


def _settings(plan: Plan) -> tomlkit.items.Table:
    table = tomlkit.table()
    for name, value in plan.setting.items():
        item = _item(value)
        if because := _because(plan, name):
            item.comment(because)
        table.add(name, item)
    return table


def _evidence(evidence: tuple[Tried, ...]) -> tomlkit.items.AoT:
    """A table for each that was tried, without what says nothing."""
    defaults = {f.name: f.default for f in dataclasses.fields(Tried)}
    tables = tomlkit.aot()
    for tried in evidence:
        table = tomlkit.table()
        for key, value in dataclasses.asdict(tried).items():
            if value is not None and value != defaults[key]:
                table.add(key, _item(value))
        tables.append(table)
    return tables


def _item(value: Any) -> tomlkit.items.Item:
    """A value on one line."""
    plain = _plain(value)
    if not isinstance(plain, dict):
        item: tomlkit.items.Item = tomlkit.item(plain)
        return item
    inline = tomlkit.inline_table()
    inline.update(plain)
    return inline


def _because(plan: Plan, name: str) -> str:
    """The measurement that speaks for a setting, in a few words."""
    for tried in plan.evidence:
        if tried.name == name and tried.value == plan.setting[name] and tried.ratio is not None:
            interval = f"({tried.low:.2f} to {tried.high:.2f})" if tried.low and tried.high else ""
            return f"{tried.ratio:.2f}x faster {interval}, {tried.numerics}"
    return ""


def _confirmed(ratio: Ratio) -> tomlkit.items.Table:
    table = tomlkit.table()
    table.comment("times faster from end to end, with its interval")
    table.update({k: round(v, 4) for k, v in dataclasses.asdict(ratio).items()})
    return table


def _plain(value: Any) -> Any:
    """A value without what TOML can't hold: absent entries stay absent."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value
