"""How parent and child speak: every message is one JSON object on one line.

`{"type": <class name>, ...fields}`; the classes are those of `records`, and of what else is asked.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any, Union

from hasten.batching import Batching
from hasten.diagnosis import Examined, Observed
from hasten.errors import HastenError
from hasten.records import (
    BlockDone,
    Ended,
    Examine,
    Failed,
    Hello,
    Note,
    Observe,
    Profile,
    Proof,
    Prove,
    RunBlock,
    Stop,
    Watch,
)
from hasten.verification import Follow, Followed

Message = (
    Watch
    | RunBlock
    | Prove
    | Observe
    | Examine
    | Stop
    | Hello
    | Note
    | BlockDone
    | Proof
    | Failed
    | Ended
    | Profile
    | (Observed | Examined | Batching)
    | (Follow | Followed)
)
_CLASSES: dict[str, type] = {c.__name__: c for c in typing.get_args(Message)}


def encode(message: Message) -> bytes:
    """One message as one line of JSON."""
    fields = {f.name: _plain(getattr(message, f.name)) for f in dataclasses.fields(message)}
    return json.dumps({"type": type(message).__name__, **fields}).encode() + b"\n"


def decode(line: bytes | str) -> Message:
    """The message that a line of JSON holds.

    Raises:
        HastenError: not a message of this protocol.
    """
    try:
        fields = json.loads(line)
        return typing.cast(Message, _build(_CLASSES[fields.pop("type")], fields))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HastenError(f"not a message of hasten's protocol: {line!r} ({error})", 3) from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _build(cls: type, fields: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(**{name: _restore(hints[name], value) for name, value in fields.items()})


def _restore(hint: Any, value: Any) -> Any:
    """Give a JSON value the type that the field declares: nested records and tuples."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union:
        inner = [h for h in typing.get_args(hint) if h is not type(None)]
        return None if value is None else _restore(inner[0], value) if len(inner) == 1 else value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value)
    if typing.get_origin(hint) is tuple:
        return tuple(_restore(typing.get_args(hint)[0], item) for item in value)
    if typing.get_origin(hint) is dict:
        return {key: _restore(typing.get_args(hint)[1], item) for key, item in value.items()}
    return value
