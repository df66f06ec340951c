"""The protocol: whatever is said arrives as it was said."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten import records
from hasten.errors import HastenError
from hasten.protocol import Message, decode, encode
from hasten.records import BlockDone, Profile, RunBlock, Stop

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return st.one_of(*(of(h) for h in arguments))
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), of(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: of(h) for name, h in hints.items()})
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**50), 2**50),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=12),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return simple.get(hint, VALUES)


MESSAGES = [of(cls) for cls in typing.get_args(Message)]


@given(st.one_of(*MESSAGES))
def test_round_trip(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b"3",
        b"{}",
        b'{"type": "Nothing"}',
        b'{"type": "Hello"}',
        b'{"type": "Hello", "pid": 1, "more": 2}',
    ],
)
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(HastenError) as error:
        decode(line)
    assert error.value.exit_code == 3


def test_infinite_losses_travel() -> None:
    block = BlockDone({}, 1, 1.0, 1.0, 0, {}, loss=float("inf"))
    assert decode(encode(block)) == block


def test_defaults() -> None:
    assert decode(b'{"type": "Stop"}') == Stop()
    assert decode(b'{"type": "RunBlock", "setting": {}, "iterations": 4}') == RunBlock({}, 4)


def test_one_json_object_a_line() -> None:
    assert json.loads(encode(RunBlock({"threads": 2}, 8)))["setting"] == {"threads": 2}


def test_iteration_is_a_mean() -> None:
    names = [f.name for f in dataclasses.fields(Profile)]
    fields = dict.fromkeys(names, None) | {"iteration_seconds": (0.1, 0.3)}
    assert Profile(**fields).iteration == pytest.approx(0.2)
    assert Profile(**(fields | {"iteration_seconds": ()})).iteration == 0.0


def test_phases() -> None:
    assert records.PHASES[0] == "data"
