"""Whole pages: well-formed, self-contained, escaped, and right with nothing in them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hasten.diagnosis import (
    FINE_PHASES,
    Ceilings,
    Course,
    Examined,
    LoaderTimes,
    Observed,
    Place,
    Span,
    Spread,
    Stretch,
    Timeline,
    WhatIf,
)
from hasten.environment import look
from hasten.findings import Diagnosis, Finding, Found, Kind, Verdict
from hasten.plan import Plan
from hasten.records import Outcome, Profile, Ratio, Tried
from hasten.report.html.diagnosis_page import diagnosis_page
from hasten.report.html.source import excerpt
from hasten.report.html.tuning_page import tuning_page
from hasten.report.html.verification_page import verification_page
from hasten.verification import Judged, Pair, Verification

NASTY = "</style></script><img src=x onerror=alert(1)> & \"'{{ 7 * 7 }}"
_VOID = {"meta", "link", "br", "wbr", "img", "hr"}


class Reader(HTMLParser):
    """Checks nesting, and keeps what tests ask for."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open, self.getpos())

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, *names: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, attributes) for tag, attributes in self.tags if tag in names]


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


class Example(Finding):
    name = "example"
    subject = "data"

    def look(self, diagnosis: Diagnosis) -> Any:
        return iter(())


def spread(mean: float) -> Spread:
    return Spread(mean, mean, 0.9 * mean, 1.2 * mean, 0.3)


def observed(**changes: Any) -> Observed:
    phases = dict(zip(FINE_PHASES, (0.03, 0.0, 0.1, 0.14, 0.02, 0.01), strict=True))
    seen = Observed(
        iterations=40,
        wall=spread(0.3),
        processor=spread(0.3),
        phases={name: spread(seconds) for name, seconds in phases.items()},
        events=(),
        sequences=(),
        opening=(),
        startup_seconds=2.0,
        stretches=(Stretch("validation", 2, 1.5), Stretch(NASTY, 1, 0.1)),
        plain_seconds=12.0,
        plain_iterations=40,
        trained_iterations=40,
        facts={
            "processor": {"own": 1.5, "others": 0.2},
            "losses": {"course": [[i, 3.0 - 0.05 * i] for i in range(40)]},
            "memory": {"seconds": [0.0, 1.0, 2.0], "resident": [1e9, 1.1e9, 1.2e9], "device": []},
        },
        timeline=Timeline(
            (0.0, 0.3, 0.6),
            (Span("main", "data", 0.0, 0.03), Span("main", "forward", 0.03, 0.6)),
            {"workers": NASTY},
        ),
    )
    return dataclasses.replace(seen, **changes)


def diagnosis(profile: Profile, **changes: Any) -> Diagnosis:
    made = Diagnosis(
        profile=profile,
        environment=look(),
        observed=observed(),
        examined=Examined(
            loader=LoaderTimes(fetch=0.03, collate=0.001, batch_bytes=2**20, alone=0.02),
            flops=10**10,
            peaks={"float32": 1e11},
            memory_first=10**9,
            memory_last=12 * 10**8,
            peak_memory=13 * 10**8,
        ),
        ceilings=Ceilings(data_free=WhatIf(0.3, 0.27, 6)),
        what_ifs={"example": WhatIf(0.3, 0.2, 6), "unsure": WhatIf(0.3, 0.31, 6, False)},
        notes=(NASTY,),
    )
    return dataclasses.replace(made, **changes)


def verdict(kind: Kind = Kind.COST, **changes: Any) -> Verdict:
    finding = Example()
    finding.kind = kind  # type: ignore[misc]
    finding.fixed_by = ("amp-bf16",)  # type: ignore[misc]
    found = Found(NASTY, NASTY, (NASTY,), Place("/nowhere/<b>.py", 7, NASTY, NASTY), 0.05)
    return Verdict(finding, dataclasses.replace(found, **changes), 0.2)


@pytest.fixture
def pages(make_profile: Callable[..., Profile], make_outcome: Callable[..., Outcome]) -> list[str]:
    """Full pages with something nasty wherever the user has a say."""
    profile = make_profile(notes=(NASTY,), timeline=observed().timeline)
    kinds = [verdict(kind) for kind in Kind]
    tried = (
        *make_outcome().tried,
        Tried(NASTY, NASTY, 1.2, 0.0, float("inf"), "cannot tell", "exact", NASTY, against=NASTY),
        Tried(NASTY, NASTY, None, None, None, "not applicable", "exact", NASTY),
        Tried(NASTY, NASTY, None, None, None, "cannot tell", "exact", NASTY),
        Tried("threads", 1, 0.8, 0.7, 0.9, "slower", "rounding"),
        Tried("threads", 2, 1.0, 0.99, 1.01, "no difference", "rounding"),
        Tried("x", True, None, None, None, "failed", "rounding", NASTY),
    )
    lines = tuple((i, 1 / i) for i in range(1, 50))
    outcome = make_outcome(
        tried=tried,
        profile=profile,
        notes=(NASTY,),
        shield=NASTY,
        courses=(Course({}, lines, 10**9), Course({"amp-bf16": True}, lines[5:], 9 * 10**8)),
        counted=40,
        verified=verification(),
    )
    plan = Plan(NASTY, (NASTY,), outcome.setting)
    return [
        diagnosis_page(diagnosis(profile), kinds, NASTY, (NASTY, NASTY)),
        tuning_page(outcome, plan, Path(NASTY.replace("/", "_"))),
        verification_page(verification(), (NASTY, NASTY), look().describe()),
    ]


def verification(**changes: Any) -> Verification:
    """Two pairs with another loss each, and something nasty in every text."""
    loss = Judged("final loss", "not worse", 0.05, NASTY, 0.5, 0.51, 0.01, -0.01, 0.03, 2, 0.95)
    metric = Judged(
        NASTY, "cannot tell", 0.1, "given", 0.9, 0.8, 0.1, 0.0, 0.2, 2, 0.95, False, NASTY
    )
    curves = [tuple(1 / (i + k) for i in range(1, 31)) for k in range(4)]
    found = Verification(
        verdict="broken",
        judged=(loss, metric),
        broken=(NASTY,),
        pairs=(Pair(0, curves[0], curves[1]), Pair(1, curves[2], curves[3])),
        iterations=30,
        smoothed=6,
        seeds=NASTY,
        setting={"amp-bf16": True, "x": NASTY},
        notes=(NASTY,),
        shield=NASTY,
    )
    return dataclasses.replace(found, **changes)


def test_the_page_of_a_verification_shows_every_pair_and_the_margin() -> None:
    page = verification_page(verification(), ("t.py",), look().describe())
    text = read(page).text
    for part in ("do not use it", "Mean of all pairs", "Pair 1", "Pair 2", "0.05", "below 0.03"):
        assert part in text
    assert page.count("line l-first") == page.count("line l-second") == 3
    assert page.count("line l-limit") == 1


def test_the_page_of_a_verification_with_as_little_as_there_can_be() -> None:
    same = Judged("final loss", "not worse", 0.05, "given", 0.5, 0.5, 0.0, 0.0, 0.0, 1, 0.95, True)
    one = Pair(0, (2.0, 1.0), (2.0, 1.0))
    little = verification(
        verdict="holds", judged=(same,), broken=(), pairs=(one,), iterations=2, smoothed=1, notes=()
    )
    text = read(verification_page(little, ("-m", "train"), {})).text
    assert "the same to the bit in all 1 pairs" in text and "Pair 1" not in text
    nothing = verification(verdict="cannot tell", judged=(), pairs=(), iterations=0)
    assert "No run gave a loss." in read(verification_page(nothing, ("t.py",), {})).text


def test_pages_are_well_formed_and_everything_in_them_is_escaped(pages: list[str]) -> None:
    for page in pages:
        reader = read(page)
        assert not reader.all("script", "img", "iframe", "object", "embed", "b[")
        assert "{{ 7 * 7 }}" in reader.text and "49" not in reader.text.split("{{")[1][:12]
        assert not [a for _, attributes in reader.tags for a in attributes if a.startswith("on")]


def test_pages_load_nothing(pages: list[str]) -> None:
    for page in pages:
        reader = read(page)
        for _, attributes in reader.tags:
            for name in ("src", "href", "xlink:href", "action", "poster", "data"):
                value = attributes.get(name) or ""
                assert not value or value.startswith(("#", "data:image/svg+xml,")), value
        assert "@import" not in page and "@font-face" not in page
        urls = {part.partition(")")[0] for part in page.split("url(")[1:]}
        assert urls <= {"#hatch"}
        (policy,) = [
            a["content"] for _, a in reader.all("meta") if "Content-Security-Policy" in a.values()
        ]
        assert policy is not None and policy.startswith("default-src 'none'")


def test_headings_and_links_are_in_order(pages: list[str]) -> None:
    for page in pages:
        reader = read(page)
        levels = [int(tag[1]) for tag, _ in reader.all("h1", "h2", "h3", "h4")]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))
        ids = [a["id"] for _, a in reader.tags if "id" in a]
        assert len(set(ids)) == len(ids)
        links = [a["href"] or "" for _, a in reader.all("a")]
        assert len(links) > 4 and {link.removeprefix("#") for link in links} <= set(ids)
        labelled = [a["aria-labelledby"] for _, a in reader.tags if "aria-labelledby" in a]
        assert set(labelled) <= set(ids)


def test_every_picture_is_in_words_or_hidden(pages: list[str]) -> None:
    for page in pages:
        reader = read(page)
        outer = [a for tag, a in reader.all("svg") if "class" in a or "role" in a]
        for attributes in outer:
            if attributes.get("class") in ("mark",):
                continue  # inside of another
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")
        assert all("scope" in a for _, a in reader.all("th"))
        assert len(reader.all("caption")) == len(reader.all("table"))


def test_the_figures_are_those_of_the_records(pages: list[str]) -> None:
    text = read(pages[0]).text
    for part in ("300 ms", "50.0 ms", "20 % of the run", "270 ms", "1.11\u00d7", "without example"):
        assert part in text
    assert "within the noise" in text and "arithmetic alone" in text
    text = read(pages[1]).text
    for part in ("1.74\u00d7", "172 ms", "1.66 to 1.82", "with amp-bf16", "on top of amp-bf16"):
        assert part in text
    assert "gradient error 0.29 is above the bound" in text


@pytest.mark.parametrize("setting", [{}, {"amp-bf16": True}])
def test_pages_with_as_little_as_there_can_be(
    setting: dict[str, Any],
    make_profile: Callable[..., Profile],
    make_outcome: Callable[..., Outcome],
) -> None:
    zero = Spread(0.0, 0.0, 0.0, 0.0)
    empty = observed(
        iterations=0,
        wall=zero,
        processor=zero,
        phases=dict.fromkeys(FINE_PHASES, zero),
        stretches=(),
        startup_seconds=0.0,
        plain_seconds=0.0,
        plain_iterations=0,
        trained_iterations=0,
        facts={},
        timeline=None,
    )
    profile = make_profile(iteration_seconds=(), phases={}, loader=None, roots=(), optimizers=())
    bare = Diagnosis(profile, look(), empty)
    assert "Nothing wrong was found." in read(diagnosis_page(bare, [], "", ("train.py",))).text
    outcome = make_outcome(
        profile=profile,
        tried=(),
        setting=setting,
        confirmed=None,
        confirmed_verdict="",
        shield="",
        notes=(),
        data_free=None,
    )
    text = read(tuning_page(outcome, Plan("train.py", (), setting), None)).text
    assert ("stays as it is" in text) == (not setting)


def test_a_plan_that_time_did_not_suffice_to_confirm(make_outcome: Callable[..., Outcome]) -> None:
    outcome = make_outcome(confirmed=Ratio(1.1, 0.97, 1.3), confirmed_verdict="cannot tell")
    text = read(tuning_page(outcome, Plan("train.py", (), outcome.setting), None)).text
    assert "did not suffice" in text and "as fast, perhaps" in text


def test_a_gain_that_is_hardly_known_is_not_quoted_as_a_number(
    make_outcome: Callable[..., Outcome],
) -> None:
    outcome = make_outcome(confirmed=Ratio(14.1, 1.51, 93.2))
    text = read(tuning_page(outcome, Plan("train.py", (), outcome.setting), None)).text
    assert "\u2265 1.51\u00d7 as fast" in text and "by the confirmed ratio" not in text


def test_a_tuning_shows_what_was_compared_of_the_training(
    make_outcome: Callable[..., Outcome],
) -> None:
    outcome = make_outcome(counted=40, verified=verification(broken=()))
    page = read(tuning_page(outcome, Plan("train.py", (), outcome.setting), None))
    assert "Counted over 40 iterations of the script as it is and under the plan" in page.text
    assert "final loss: not worse" in page.text and "Mean loss over 2 pairs" in str(page.tags)
    broken = make_outcome(counted=40, broken=("optimizer steps: 9",), verified=None)
    text = read(tuning_page(broken, Plan("train.py", (), broken.setting), None)).text
    assert "optimizer steps: 9" in text and "Counted over" not in text
    without = make_outcome()
    text = read(tuning_page(without, Plan("train.py", (), without.setting), None)).text
    assert "Does it train the same" not in text


def test_a_page_of_much_stays_small(
    make_profile: Callable[..., Profile], make_outcome: Callable[..., Outcome]
) -> None:
    spans = tuple(Span("main", "forward", i / 1e4, (i + 0.9) / 1e4) for i in range(2400))
    workers = tuple(Span(f"worker {i % 16}", "batch", i / 2e3, (i + 1) / 2e3) for i in range(400))
    line = tuple((i, 1.0) for i in range(20_000))
    profile = make_profile(timeline=Timeline((0.0, 0.25), spans + workers))
    outcome = make_outcome(profile=profile, courses=(Course({}, line), Course({"x": 1}, line)))
    page = tuning_page(outcome, Plan("train.py", (), outcome.setting), None)
    assert len(page.encode()) < 2 * 2**20


# --- source ------------------------------------------------------------------------------------


def test_source_is_shown_round_the_line(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "\n".join(["import torch", "", "def f():", "\tx = 1", "\ty = 2", "\tz = 3", ""])
    )
    shown = excerpt(Place(str(file), 5, "y = 2", "f"))
    assert shown is not None
    assert [line.number for line in shown.lines] == [3, 4, 5, 6] or shown.lines[0].number == 3
    assert [line.text for line in shown.lines if line.here] == ["    y = 2"]


def test_source_ends_with_its_function(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def f():\n    x = 1\n    y = 2\n\n\nf()\n")
    shown = excerpt(Place(str(file), 3, "y = 2"))
    assert shown is not None and [line.number for line in shown.lines] == [1, 2, 3]


def test_source_that_has_changed_is_not_shown_as_if_it_were_that(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("something else\n" * 9)
    shown = excerpt(Place(str(file), 5, "y = 2"))
    assert shown is not None and [line.text for line in shown.lines] == ["y = 2"]
    gone = excerpt(Place(str(tmp_path / "gone.py"), 5))
    assert gone is not None and gone.lines == () and gone.name.endswith("gone.py:5")
    assert excerpt(None) is None


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("x = '" + "y" * 100_000 + "'\n")
    shown = excerpt(Place(str(file), 1))
    assert shown is not None and len(shown.lines[0].text) <= 400
    json.dumps(dataclasses.asdict(shown))
