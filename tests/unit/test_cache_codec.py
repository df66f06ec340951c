"""Items as bytes: equal to the bit and new each time, or refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hasten.instrument.seams.cache_codec import HOLE, Unstorable, decode, encode
from hasten.instrument.seams.loader_batches import difference, leaves


def there_and_back(value: Any) -> Any:
    return decode(memoryview(b"".join(encode(value))))


def picture(mode: str) -> Image.Image:
    pixels = numpy.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=numpy.uint8)
    return Image.fromarray(pixels).convert(mode)


ITEMS: dict[str, Any] = {
    "pair": (torch.rand(3, 4), 7),
    "dict": {"image": torch.arange(6, dtype=torch.uint8), "name": "a", "box": [1.5, None, True]},
    "empty": torch.empty(0, 3),
    "number": torch.tensor(3.0, dtype=torch.bfloat16),
    "transposed": torch.rand(4, 5).t(),
    "channels last": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "part": torch.rand(10)[2:5],
    "every other": torch.rand(5, 1),
    "array": numpy.arange(12, dtype=">f4").reshape(3, 4),
    "fortran": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
    "numpy number": numpy.int64(3),
    "bytes": b"\0\1",
}


@pytest.mark.parametrize("value", ITEMS.values(), ids=ITEMS.keys())
def test_there_and_back(value: Any) -> None:
    again = there_and_back(value)
    assert difference(list(leaves(value)), list(leaves(again))) is None
    if isinstance(value, torch.Tensor):
        assert again.stride() == value.stride() and again.dtype == value.dtype


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "I", "F"])
def test_pictures(mode: str) -> None:
    value = picture(mode)
    value.info["dpi"] = (72, 72)
    again = there_and_back(value)
    assert (again.mode, again.size, again.info) == (value.mode, value.size, value.info)
    assert again.convert("RGB").tobytes() == value.convert("RGB").tobytes()


def test_each_time_a_new_object_that_may_be_written_to() -> None:
    data = memoryview(b"".join(encode((torch.zeros(4), [1], numpy.zeros(2)))))
    one, other = decode(data), decode(data)
    one[0].add_(1)
    one[1].append(2)
    one[2][0] = 5
    assert torch.equal(other[0], torch.zeros(4)) and other[1] == [1] and other[2][0] == 0
    assert torch.equal(decode(data)[0], torch.zeros(4))


def test_the_same_object_twice_stays_the_same() -> None:
    value = torch.zeros(3)
    one, two = there_and_back((value, value))
    assert one is two


def test_a_hole_stays_a_hole() -> None:
    assert there_and_back((HOLE, 3)) == (HOLE, 3)
    assert decode(memoryview(b"".join(encode({"x": HOLE}))), hole="here") == {"x": "here"}


class Own:
    """A class of the script's."""


class OwnTensor(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Own(),
        {1, 2},
        torch.rand(3).as_subclass(OwnTensor),
        torch.rand(3, requires_grad=True),
        torch.rand(4)[::2],
        torch.rand(3).expand(2, 3),
        torch.rand(3).to_sparse(),
        numpy.array([Own()]),
        [lambda: None],
        torch.complex(torch.rand(2), torch.rand(2)).conj(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_surely_equal_copy_is_refused(value: Any) -> None:
    with pytest.raises(Unstorable):
        encode((value, 1))


def test_nothing_is_imported_or_called_by_what_is_read() -> None:
    head = pickle.dumps(print)
    data = len(head).to_bytes(4, "little") + bytes(4) + head
    with pytest.raises(Unstorable):
        decode(memoryview(data))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(PLAIN)
@settings(max_examples=60, deadline=None)
def test_any_plain_item(value: Any) -> None:
    again = there_and_back((value, torch.ones(1)))
    assert again[0] == value
