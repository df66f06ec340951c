"""Plans: what is written is what is read, and every way of being wrong is one clear line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import tomlkit

from hasten import plan as plans
from hasten.environment import Environment, look
from hasten.errors import HastenError
from hasten.optimisations import discover
from hasten.plan import Plan, differences, dump, load, machine_fingerprint, writable
from hasten.records import Ratio, Tried

WORKERS = {"workers": 2, "prefetch": 2, "persistent": True}
EVIDENCE = (
    Tried("amp-bf16", True, 1.71, 1.62, 1.8, "faster", "rounding", pairs=12, seconds=31.5),
    Tried("loader-workers", WORKERS, 1.05, 1.01, 1.09, "faster", "exact", against="amp-bf16"),
    Tried("compile", None, None, None, None, "not applicable", "rounding", 'no "compiler"\n'),
)


def plan(**changes: object) -> Plan:
    fields: dict[str, object] = dict(
        script="train.py",
        arguments=("--name", 'a "b" \\ c', "--epochs", "3"),
        setting={"amp-bf16": True, "loader-workers": WORKERS},
        evidence=EVIDENCE,
        confirmed=Ratio(1.74, 1.66, 1.82),
        fingerprint={"loader": "ImageFolder", "torch": "2.14.1", "device": "cpu: A, 2 cores"},
        verified={"pairs": 5, "final_loss": "not worse", "final_loss_margin": 0.00012},
    )
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    dump(plan(), path)
    assert load(path) == plan(created=load(path).created)


@pytest.mark.parametrize("changes", [{"setting": {}, "evidence": (), "confirmed": None}])
def test_an_empty_plan(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "hasten.toml"
    dump(plan(**changes), path)
    read = load(path)
    assert read.setting == {}
    assert read.confirmed is None


def test_it_can_be_read_by_a_person(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    dump(plan(), path)
    text = path.read_text()
    assert "hasten run train.py" in text
    assert "amp-bf16 = true # 1.71x faster (1.62 to 1.80), rounding" in text
    assert "loader-workers = {workers = 2, prefetch = 2, persistent = true}" in text
    assert text.index("[settings]") < text.index("[[evidence]]")


def test_values_of_zero_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    none = Tried("loader-workers", 0, 1.0, 0.9, 1.1, "no difference", "exact")
    dump(plan(evidence=(none,)), path)
    assert load(path).evidence[0].value == 0


def test_an_open_interval_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    vague = Tried("threads", 2, 1.2, 0.0, float("inf"), "cannot tell", "rounding")
    dump(plan(evidence=(vague,)), path)
    assert load(path).evidence == (vague,)


def error(path: Path) -> str:
    with pytest.raises(HastenError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing(tmp_path: Path) -> None:
    assert "make one with hasten tune" in error(tmp_path / "hasten.toml")


def test_a_directory(tmp_path: Path) -> None:
    assert "can't be read" in error(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schema = 1\n[settings\n", "line 2"),
        ("", "no schema number"),
        ("schema = true", "no schema number"),
        ('schema = "1"', "no schema number"),
        ("schema = 99\n[settings]\n", "newer hasten (schema 99"),
        ("schema = 1\n[settings]\namp-bf61 = true\n", "did you mean amp-bf16?"),
        ("schema = 1\n[settings]\nwarp-drive = true\n", "unknown setting warp-drive: known are"),
        ("schema = 1\n[settings]\namp-bf16 = 3\n", "amp-bf16 = 3: expected true"),
        ("schema = 1\nsettings = 3\n", "settings should be a table"),
        ("schema = 1\nevidence = 3\n", "not a plan"),
        ("schema = 1\n[[evidence]]\nvalue = 1\n", "not a plan"),
        ("schema = 1\n[confirmed]\nratio = 1.0\n", "'low' is missing"),
        ("schema = 1\n[confirmed]\nratio = 'a'\nlow = 1\nhigh = 1\n", "not a plan"),
        ("schema = 1\na = 1\na = 2\n", "not valid TOML"),
    ],
)
def test_malformed(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "hasten.toml"
    path.write_text(text)
    assert expected in error(path)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not valid TOML" in error(path)


def test_a_failed_write_leaves_the_old_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hasten.toml"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(HastenError, match="No space left"):
        dump(plan(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["hasten.toml"]


def test_permissions(tmp_path: Path) -> None:
    path = tmp_path / "hasten.toml"
    dump(plan(), path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    dump(plan(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "hasten.toml"
    link.symlink_to(tmp_path / "real" / "plan.toml")
    dump(plan(), link)
    assert link.is_symlink()
    assert load(tmp_path / "real" / "plan.toml").script == "train.py"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("", "is a directory"), ("none/hasten.toml", "no directory"), ("pipe", "not a regular file")],
)
def test_unwritable(tmp_path: Path, name: str, expected: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HastenError, match=expected):
        writable(tmp_path / name)


def test_an_unwritable_folder() -> None:
    with pytest.raises(HastenError, match="may not be written"):
        writable(Path("/proc/hasten.toml"))


def test_an_unwritable_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hasten.toml").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root
    with pytest.raises(HastenError, match="it may not be written"):
        writable(tmp_path / "hasten.toml")


def test_writable_writes_nothing(tmp_path: Path) -> None:
    writable(tmp_path / "hasten.toml")
    assert os.listdir(tmp_path) == []


def test_differences() -> None:
    now = {"loader": "CIFAR10", "torch": "2.14.1", "device": "cuda: NVIDIA L4", "new": "x"}
    found = differences(plan(), now)
    assert [(d.key, d.now) for d in found] == [("loader", "CIFAR10"), ("device", "cuda: NVIDIA L4")]
    assert [d.blocking for d in found] == [False, True]
    assert str(found[1]) == "device was cpu: A, 2 cores, is now cuda: NVIDIA L4"


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ("2.14.1+cu130", "2.14.1", True),
        ("2.14.1", "2.14.1", True),
        ("2.14.1+cu130", "2.14.1+cpu", False),
        ("2.14.1", "2.15.0", False),
    ],
)
def test_torch_builds(then: str, now: str, same: bool) -> None:
    made = plan(fingerprint={"torch": then})
    assert (differences(made, {"torch": now}) == []) is same


def test_machine_fingerprint() -> None:
    environment: Environment = look()
    cpu = machine_fingerprint("cpu", environment)
    assert cpu["device"].startswith("cpu: ")
    assert cpu["torch"] == environment.torch
    if not environment.gpus:
        assert machine_fingerprint("cuda:0", environment)["device"] == "cuda: no GPU found"


def test_every_unit_can_be_in_a_plan() -> None:
    assert plans.SCHEMA == 1
    assert {"amp-bf16", "loader-workers"} <= set(discover())
    assert tomlkit.parse(tomlkit.dumps(plans._document(plan()))).unwrap()["schema"] == 1
