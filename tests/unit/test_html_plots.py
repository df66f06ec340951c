"""Scales, bars, ratios, curves and lanes of the report's pages."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.diagnosis import Span, Timeline
from hasten.records import Tried
from hasten.report.html.plots import VERDICTS, Bar, Curve, Scale, Series, curve, interval, scale
from hasten.report.html.svg import milliseconds, number, percent, ratio_ticks, tag, ticks
from hasten.report.html.timeline import lanes

NASTY = "<script>alert('1')</script> & \"x\""


def tried(ratio: float | None, low: float | None, high: float | None, verdict: str) -> Tried:
    return Tried("amp-bf16", True, ratio, low, high, verdict, "rounding", pairs=3)


def lengths(markup: str, name: str) -> list[float]:
    """All values of an attribute that is a percentage."""
    return [float(v) for v in re.findall(rf' {name}="(-?[\d.]+)%"', markup)]


# --- elements and scales -----------------------------------------------------------------------


def test_an_element_escapes_what_is_in_it_and_its_attributes() -> None:
    made = tag("text", NASTY, tag("title", "a < b"), aria_label=NASTY, class_="p", x=None)
    parsed = ElementTree.fromstring(str(made))
    assert parsed.text == NASTY and parsed.attrib == {"aria-label": NASTY, "class": "p"}
    assert parsed[0].text == "a < b"


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_inside_and_about_as_many_as_wanted(low: float, span: float, count: int) -> None:
    high = low + span
    found = ticks(low, high, count)
    slack = 1e-6 * max(abs(low), abs(high), 1e-6)
    assert all(low - slack <= t <= high + slack for t in found)
    assert found == sorted(found) and len(found) <= count + 2


def test_ticks_are_round() -> None:
    assert ticks(0, 2683) == [0, 1000, 2000]
    assert ticks(0.07, 0.31) == [0.1, 0.15, 0.2, 0.25, 0.3]
    assert ticks(3.0, 3.0) == [3.0]
    assert ticks(0.0, math.inf) == [0.0] and ticks(math.nan, 1.0) == []


@given(st.floats(0.01, 0.95), st.floats(1.05, 100.0))
def test_ratio_ticks_have_one_among_them_and_room(low: float, high: float) -> None:
    found = ratio_ticks(low, high, 0.1)
    assert 1.0 in found and found == sorted(found)
    gaps = [math.log(b / a) for a, b in pairwise(found)]
    assert all(gap >= 0.0999 * math.log(high / low) for gap in gaps)
    assert all(low <= ratio <= high for ratio in found)


def test_words_for_numbers() -> None:
    assert [milliseconds(s) for s in (0.2763, 0.0241, 0.00239, 0.000046)] == [
        "276 ms",
        "24.1 ms",
        "2.39 ms",
        "0.046 ms",
    ]
    assert [number(v) for v in (0, 1000.0, 0.25, 12345.0)] == ["0", "1,000", "0.25", "1.23e+04"]
    assert [percent(share) for share in (-1, 0, 1 / 3, 7)] == ["0%", "0%", "33.333%", "100%"]


# --- bars and ratios ---------------------------------------------------------------------------


def test_a_bar_is_as_long_as_its_share() -> None:
    picture = str(Bar("data wait", 0.25, "1 ms", "data", start=0.5).picture)
    assert lengths(picture, "width") == [100, 100, 25, 25]
    assert lengths(picture, "x") == [50, 50]
    assert "url(#hatch)" in picture


def test_a_scale_is_logarithmic_and_holds_all_ratios() -> None:
    on = scale([tried(2.0, 1.8, 2.2, "faster"), tried(0.5, 0.0, math.inf, "cannot tell")])
    assert on.low < 0.5 and on.high > 2.2
    assert on.at(2.0) - on.at(1.0) == pytest.approx(on.at(1.0) - on.at(0.5))
    assert on.at(0.0) == 0.0 and on.at(math.inf) == 1.0
    assert on.low > 0.05 and on.high < 20  # an interval without an end does not stretch it


def test_a_scale_without_anything_has_one_in_the_middle() -> None:
    on = scale([])
    assert on.low < 1 < on.high and on.at(1.0) == pytest.approx(0.5)


@pytest.mark.parametrize("verdict", list(VERDICTS))
def test_every_verdict_is_told_by_a_shape_too(verdict: str) -> None:
    on = scale([tried(1.5, 1.2, 1.9, verdict)])
    picture = interval(tried(1.5, 1.2, 1.9, verdict), on)
    kind, shape = VERDICTS[verdict]
    assert shape in picture and f"v-{kind}" in picture
    ElementTree.fromstring(str(picture))


def test_shapes_of_verdicts_that_mean_different_things_differ() -> None:
    told = {verdict: look for verdict, look in VERDICTS.items() if verdict != "failed"}
    assert len({shape for _, shape in told.values()}) == len(told)


def test_an_interval_lies_where_its_numbers_are() -> None:
    on = Scale(0.5, 2.0)
    picture = str(interval(tried(1.0, 0.5**0.5, 2**0.5, "no difference"), on))
    (whisker,) = re.findall(r'<line x1="([\d.]+)%" x2="([\d.]+)%" y1="14"', picture)
    assert [float(v) for v in whisker] == pytest.approx([25.0, 75.0])
    assert 50.0 in lengths(picture, "x")


@pytest.mark.parametrize(
    "numbers", [(None, None, None), (1.2, None, None), (1.2, 0.0, math.inf), (1.2, math.nan, 1.3)]
)
def test_what_is_not_known_is_drawn_without_a_failure(numbers: tuple[float | None, ...]) -> None:
    entry = tried(*numbers, "cannot tell")  # type: ignore[arg-type]
    picture = str(interval(entry, scale([entry])))
    ElementTree.fromstring(picture)
    assert "nan" not in picture and "inf" not in picture
    assert ('class="mark"' in picture) == (numbers[0] is not None)


# --- curves ------------------------------------------------------------------------------------


def drawn(plot: Curve) -> list[list[tuple[float, float]]]:
    """The points of each line, in the plot's own coordinates."""
    return [
        [tuple(map(float, p.split())) for p in data.split("L")]  # type: ignore[misc]
        for data in re.findall(r' d="M([^"]+)"', str(plot.picture))
    ]


def test_a_curve_goes_where_its_points_are() -> None:
    plot = curve([Series("loss", ((10.0, 3.0), (20.0, 2.0), (40.0, 1.0)))], "falls")
    assert plot is not None
    (points,) = drawn(plot)
    assert [x for x, _ in points] == pytest.approx([0, 333.3, 1000])
    ys = [y for _, y in points]
    assert ys[2] - ys[1] == pytest.approx(ys[1] - ys[0]) and 0 < ys[0] < ys[2] < 1000


def test_lines_share_their_scale() -> None:
    low, high = ((0.0, 1.0), (1.0, 1.0)), ((0.0, 9.0), (2.0, 9.0))
    plot = curve([Series("a", low), Series("b", high, "second")], "two", zero=True)
    assert plot is not None and plot.names == (("first", "a"), ("second", "b"))
    first, second = drawn(plot)
    assert first[1][0] == pytest.approx(500) and second[1][0] == pytest.approx(1000)
    assert first[0][1] > second[0][1]
    assert any(t.text == "0" and t.at == "100%" for t in plot.up)


def test_no_line_no_plot() -> None:
    assert curve([], "nothing") is None
    assert curve([Series("a", ((1.0, 1.0),)), Series("b", ((1.0, math.nan),) * 3)], "x") is None


def test_a_flat_and_a_long_line_can_be_drawn() -> None:
    flat = curve([Series("a", ((0.0, 0.0), (1.0, 0.0)))], "flat")
    assert flat is not None and "nan" not in flat.picture
    long = curve([Series("a", tuple((float(i), i % 7.0) for i in range(50_000)))], "long")
    assert long is not None and len(drawn(long)[0]) <= 400 and len(long.picture) < 10_000


# --- lanes -------------------------------------------------------------------------------------


def timeline() -> Timeline:
    spans = (
        Span("main", "data", 0.0, 0.04),
        Span("main", "forward", 0.04, 0.1),
        Span("worker 10", "batch", 0.0, 0.03),
        Span("worker 9", "batch", 0.02, 0.08),
        Span("worker 9", "batch", 0.08, 0.09),
        Span("device", "busy", 0.05, 0.2),
        Span("main", "backward", 0.1, 0.2),
    )
    return Timeline((0.0, 0.1, 0.2), spans, {"workers": NASTY})


def test_lanes_are_in_order_and_in_words() -> None:
    shown = lanes(timeline())
    assert shown is not None and shown.iterations == 2
    assert [lane.name for lane in shown.lanes] == [
        "main process",
        "worker 9",
        "worker 10",
        "device",
    ]
    assert (
        "backward 50.0 ms" in shown.lanes[0].words and "data wait 20.0 ms" in shown.lanes[0].words
    )
    assert shown.missing == (f"workers: {NASTY}",)
    assert [what for what, _ in shown.legend] == ["data", "forward", "backward", "batch", "busy"]


def test_a_lane_is_drawn_to_scale() -> None:
    shown = lanes(timeline())
    assert shown is not None
    main, nine = str(shown.lanes[0].picture), str(shown.lanes[1].picture)
    found = re.findall(r'<rect class="p p-(\w+)" y="0" x="([\d.]+)%" width="([\d.]+)%"', main)
    assert found == [("data", "0", "20"), ("forward", "20", "30"), ("backward", "50", "50")]
    assert nine.count('class="p p-batch"') == 2  # two batches stay two
    for lane in shown.lanes:
        ElementTree.fromstring(str(lane.picture))


def test_an_unknown_phase_is_shown_and_escaped() -> None:
    shown = lanes(Timeline((0.0, 1.0), (Span("main", NASTY, 0.0, 1.0),)))
    assert shown is not None
    root = ElementTree.fromstring(str(shown.lanes[0].picture))
    assert NASTY in root.attrib["aria-label"]


@pytest.mark.parametrize("nothing", [None, Timeline((), ()), Timeline((0.0, 0.0), ())])
def test_no_timeline(nothing: Timeline | None) -> None:
    assert lanes(nothing) is None


def test_hundreds_of_workers_are_not_all_shown() -> None:
    spans = tuple(Span(f"worker {i}", "batch", 0.0, 1.0) for i in range(100))
    shown = lanes(Timeline((0.0, 1.0), (Span("main", "data", 0.0, 1.0), *spans)))
    assert shown is not None and len(shown.lanes) < 20
    assert "more workers" in shown.missing[-1]
