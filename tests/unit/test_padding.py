"""Padding is measured by what the model calls so, and its cost by shorter inputs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from hasten.diagnosis import FINE_PHASES, Examined, Observed, Spread
from hasten.environment import look
from hasten.findings import Diagnosis, Found, discover
from hasten.findings.data.padding_waste import by_length
from hasten.instrument.observe.arithmetic import Captured
from hasten.instrument.observe.padding import FRACTIONS, Padding, shorter
from hasten.records import Profile

Make = Callable[..., Profile]


class Model(nn.Module):
    def __init__(self, pad: int | None = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 4, padding_idx=pad)
        self.lengths: list[int] = []

    def forward(self, ids: torch.Tensor, mask: Any = None) -> torch.Tensor:
        self.lengths.append(ids.shape[1])
        found: torch.Tensor = self.embedding(ids)
        return found if mask is None else found * mask.unsqueeze(-1)


def ids(*lengths: int, length: int, left: bool = False) -> torch.Tensor:
    rows = torch.zeros(len(lengths), length, dtype=torch.long)
    for row, size in zip(rows, lengths, strict=True):
        row[length - size if left else 0 :][:size] = torch.arange(1, size + 1)
    return rows


def seen(batches: list[Any], model: nn.Module) -> dict[str, Any]:
    observer = Padding()
    for batch in batches:
        observer.fetched(cast(Any, None), None, batch, True)
    roots = [SimpleNamespace(module=model)]
    return observer.finish(cast(Any, None), SimpleNamespace(seams=SimpleNamespace(roots=roots)))


@pytest.mark.parametrize("left", [False, True])
def test_rows_are_measured_without_their_padding(left: bool) -> None:
    batch = ids(2, 7, 5, length=7, left=left), torch.randn(3)
    facts = seen([batch, batch], Model())
    assert facts["batches"] == [{"length": 7, "rows": [2, 7, 5]}] * 2
    assert facts["by"] == "padding_idx=0"


def test_rows_may_be_columns() -> None:
    facts = seen([[ids(2, 7, 5, length=7).t()]], Model())
    assert facts["batches"] == [{"length": 7, "rows": [2, 7, 5]}]


def test_a_mask_counts_before_numbers() -> None:
    mask = (ids(3, 4, length=6) > 0).long()
    facts = seen([{"input_ids": ids(6, 6, length=6), "attention_mask": mask}], Model())
    assert facts == {"by": "attention_mask", "batches": [{"length": 6, "rows": [3, 4]}]}


def test_without_a_name_for_padding_nothing_is_known() -> None:
    assert not seen([[ids(2, 7, length=7)]], Model(pad=None))


def call(model: nn.Module, *args: Any) -> tuple[Any, Captured]:
    root = SimpleNamespace(module=model, own_compile=False, device="cpu")
    captured = Captured()
    captured(cast(Any, root), lambda *args: None, args, {})
    return root, captured


def test_the_model_is_run_on_shorter_inputs() -> None:
    tokens = ids(8, 3, length=8)
    entries = shorter(*call(Model(), tokens, tokens != 0), 0.01)
    assert [entry["fraction"] for entry in entries] == list(FRACTIONS)
    assert all(len(e["as_is"]) == len(e["instead"]) > 2 and e["length"] == 8 for e in entries)


def test_inputs_are_cut_where_they_are_long() -> None:
    lengths: list[int] = []
    model = Model()
    model.lengths = _Shared(lengths)
    shorter(*call(model, ids(8, 3, length=8)), 0.01)
    assert set(lengths) == {8, 6, 4, 2}


class _Shared(list):  # type: ignore[type-arg]
    """A list that a copy of the model shares."""

    def __init__(self, target: list[int]) -> None:
        super().__init__()
        self.target = target

    def append(self, value: int) -> None:
        self.target.append(value)

    def __deepcopy__(self, memory: Any) -> _Shared:
        return self


def test_inputs_without_padding_are_not_timed() -> None:
    assert not shorter(*call(Model(), ids(8, 8, length=8)), 0.01)
    assert not shorter(*call(Model(pad=None), ids(8, 3, length=8)), 0.01)


def test_what_cannot_be_cut_is_not_timed() -> None:
    class Fixed(Model):
        def forward(self, ids: torch.Tensor, mask: Any = None) -> torch.Tensor:
            return super().forward(ids).reshape(2, 8 * 4)

    assert not shorter(*call(Fixed(), ids(8, 3, length=8)), 0.01)


# --- the finding -------------------------------------------------------------------------------


def test_batches_by_length() -> None:
    batches = [{"length": 10, "rows": [1, 10]}, {"length": 9, "rows": [2, 9]}]
    assert by_length(batches) == 2 * 2 + 2 * 10


def judged(make: Make, batches: list[dict[str, Any]], half: float = 0.04) -> list[Found]:
    """An iteration of 100 ms, all of it forward and backward; half the length saves `half`."""
    wall = {name: _spread(0.05 * (name in ("forward", "backward"))) for name in FINE_PHASES}
    facts = {"padding": {"by": "padding_idx=0", "batches": batches}}
    seen = Observed(
        10, _spread(0.1), _spread(0.1), wall, (), (), (), 1.0, (), 1.0, 10, 10, facts, None, wall
    )
    entries = [
        {
            "fraction": fraction,
            "length": 10,
            "as_is": [0.1] * 8,
            "instead": [0.1 - 2 * (1 - fraction) * half] * 8,
        }
        for fraction in FRACTIONS
    ]
    case = Diagnosis(make(device="cpu"), look(), seen, Examined(facts={"padding": entries}))
    return list(discover()["padding-waste"].look(case))


def _spread(value: float) -> Spread:
    return Spread(value, value, value, value)


def test_it_costs_what_shorter_batches_save(make_profile: Make) -> None:
    """Batches by length have 120 of 200 positions."""
    batches = [{"length": 10, "rows": [2, 10]}] * 10
    (one,) = judged(make_profile, batches)
    assert one.cost == pytest.approx(2 * 0.4 * 0.04) and one.summary.startswith("40 %")


def test_little_padding_is_no_matter(make_profile: Make) -> None:
    assert not judged(make_profile, [{"length": 10, "rows": [9, 10]}] * 10)
    assert not judged(make_profile, [{"length": 10, "rows": [2, 10]}] * 4), "too few were seen"
    assert not judged(make_profile, [{"length": 10, "rows": [2, 10]}] * 10, half=0.0)


def test_ragged_rows_in_sorted_batches_are_right(make_profile: Make) -> None:
    assert not judged(make_profile, [{"length": n, "rows": [n - 1, n]} for n in range(10, 20)])
