"""The parts of the shield that need no process of their own."""

import os
import struct
from pathlib import Path
from types import ModuleType

import pytest

from hasten.instrument import patching
from hasten.instrument.shield import metadata, mounts, ownership, scratch, trackers
from hasten.instrument.shield.mirror import Mirror

MOUNTINFO = """\
1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
2 1 0:2 / /proc rw - proc proc rw
3 1 8:2 / /mnt/my\\040data rw master:2 - xfs /dev/sdb rw
4 1 8:3 / /ro ro - ext4 /dev/sdc rw
5 3 8:4 / /mnt/my\\040data/deep rw - ext4 /dev/sdd ro
6 1 8:5 / /mnt rw - tmpfs none rw
7 2 0:2 / /proc rw - proc proc rw
"""


def test_mountinfo() -> None:
    parsed = mounts.parse(MOUNTINFO)
    assert [m.point for m in parsed[2:4]] == ["/mnt/my data", "/ro"]
    assert [m.writable for m in parsed] == [True, True, True, False, False, True, True]


def test_only_reachable_mounts_are_seen() -> None:
    seen = mounts.visible(mounts.parse(MOUNTINFO))
    # 7 lies on 2; 6 hides 3 and with it 5.
    assert [m.identity for m in seen] == [1, 7, 4, 6]
    covering = mounts.covering("/mnt/x", seen)
    assert covering is not None and covering.identity == 6


def run_filter(program: bytes, architecture: int, number: int) -> int:
    """A tiny machine for the four instructions that the filter consists of."""
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = loaded = 0
    while True:
        code, on_true, on_false, value = steps[at]
        if code == 0x06:
            return value
        if code == 0x20:
            loaded = {0: number, 4: architecture}[value]
        else:
            assert code == 0x15
            at += on_true if loaded == value else on_false
        at += 1


@pytest.mark.parametrize("machine, chmod, read", [("x86_64", 90, 0), ("aarch64", 53, 63)])
def test_filter_asks_for_metadata_calls_only(machine: str, chmod: int, read: int) -> None:
    program = metadata._program(machine)
    architecture = metadata._AUDIT_ARCHITECTURE[machine]
    for number in metadata._names(machine):
        assert run_filter(program, architecture, number) == 0x7FC00000
    assert chmod in metadata._names(machine)
    assert run_filter(program, architecture, read) == 0x7FFF0000
    assert run_filter(program, architecture + 1, chmod) == 0x7FFF0000
    assert set(metadata._names(machine).values()) <= metadata._PLACES.keys()


def test_scratch_is_swept_only_when_abandoned(tmp_path: Path) -> None:
    environment = {"HASTEN_SCRATCH": str(tmp_path)}
    alive, alive_lock = scratch.create(environment, upper_layer=False)
    gone, gone_lock = scratch.create(environment, upper_layer=True)
    os.makedirs(gone + "/work/closed")
    os.chmod(gone + "/work", 0)
    os.close(gone_lock)
    assert scratch.sweep(environment) == [gone]
    assert os.listdir(tmp_path) == [os.path.basename(alive)]
    os.close(alive_lock)
    assert scratch.sweep(environment) == [alive]


def test_size_watch(tmp_path: Path) -> None:
    watch = scratch.SizeWatch(str(tmp_path), 1 << 20)
    assert watch.complaint() is None
    (tmp_path / "big").write_bytes(bytes(1 << 21))
    watch._next = 0.0
    assert watch.complaint() == "wrote more than 1 MiB of scratch files"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    for name in ("scratch", "user/sub/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "user" / "file").write_text("mine")
    (tmp_path / "user" / "sub" / "deep" / "other").write_text("mine")
    (tmp_path / "user" / "link").symlink_to("sub/deep")
    return Mirror(str(tmp_path / "scratch"), [])


def test_nothing_is_mapped_before_the_first_change(mirror: Mirror, tmp_path: Path) -> None:
    path = str(tmp_path / "user" / "file")
    assert mirror.reading(path) == mirror.opening(path, os.O_RDONLY) == path
    assert os.listdir(mirror.root) == []


def test_append_works_on_a_copy(mirror: Mirror, tmp_path: Path) -> None:
    path = tmp_path / "user" / "file"
    copy = Path(mirror.opening(str(path), os.O_WRONLY | os.O_APPEND))
    assert copy.read_text() == "mine" and not copy.is_symlink()
    with copy.open("a") as file:
        file.write(" and yours")
    assert path.read_text() == "mine"
    assert Path(mirror.reading(str(path))).read_text() == "mine and yours"
    assert mirror.unmapped(str(copy)) == str(path)


def test_folder_above_an_earlier_mirror_is_complete(mirror: Mirror, tmp_path: Path) -> None:
    user = tmp_path / "user"
    Path(mirror.entry(str(user / "sub" / "deep" / "new"))).write_text("1")
    Path(mirror.entry(str(user / "new"))).write_text("2")
    assert sorted(os.listdir(mirror.reading(str(user / "sub" / "deep")))) == ["new", "other"]
    assert sorted(os.listdir(mirror.reading(str(user / "link")))) == ["new", "other"]
    assert Path(mirror.reading(str(user / "link" / "new"))).read_text() == "1"
    assert sorted(os.listdir(user)) == ["file", "link", "sub"]


def test_renamed_folder_keeps_its_originals(mirror: Mirror, tmp_path: Path) -> None:
    user = tmp_path / "user"
    os.rename(mirror.entry(str(user / "sub")), mirror.entry(str(user / "moved")))
    mirror.changed_links()
    assert not os.path.lexists(mirror.reading(str(user / "sub" / "deep")))
    assert Path(mirror.reading(str(user / "moved/deep/other"))).read_text() == "mine"
    copy = mirror.opening(str(user / "moved/deep/other"), os.O_RDWR)
    Path(copy).write_text("changed")
    assert (user / "sub" / "deep" / "other").read_text() == "mine"
    assert Path(mirror.reading(str(user / "moved/deep/other"))).read_text() == "changed"


def test_another_process_sees_the_change(mirror: Mirror, tmp_path: Path) -> None:
    second = Mirror(str(tmp_path / "scratch"), [])
    path = str(tmp_path / "user" / "file")
    assert second.reading(path) == path
    os.unlink(mirror.entry(path))
    assert not os.path.lexists(second.reading(path)) and os.path.exists(path)


def test_too_large_to_copy(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.instrument.shield.mirror._LARGEST_COPY", 2)
    with pytest.raises(PermissionError, match="too large"):
        mirror.opening(str(tmp_path / "user" / "file"), os.O_RDWR)


def test_overlay_is_unfit_for_what_belongs_to_others(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1")
    found = os.stat(tmp_path)
    uid, gid = found.st_uid or 1000, found.st_gid
    assert ownership.is_overlay_fit(str(tmp_path), found.st_uid, gid)
    assert not ownership.is_overlay_fit(str(tmp_path), uid, gid + 1)
    assert ownership.is_overlay_fit(str(tmp_path), 0, gid + 1)


class FakeWriter:
    """What SummaryWriter is like, as far as the patches care."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.all_writers: object = None
        self._get_file_writer()

    def _get_file_writer(self) -> None:
        raise AssertionError("wrote a file")

    def add_scalar(self, tag: str, value: float) -> None:
        raise AssertionError("wrote a scalar")


def test_summary_writers_write_nothing(tmp_path: Path) -> None:
    module = ModuleType("writer")
    module.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    patch = trackers.patches_for("torch.utils.tensorboard.writer")
    assert patch is not None
    patch(module)
    try:
        writer = FakeWriter(str(tmp_path / "runs"))
        assert writer.add_scalar("loss", 1.0) is None  # type: ignore[func-returns-value]
        assert os.listdir(writer.log_dir) == []
    finally:
        patching.restore_all()


def test_mlflow_is_silent() -> None:
    module = ModuleType("mlflow")

    def log_metric(*_: object) -> None:
        raise AssertionError("logged")

    for name in ("log_metric", "start_run", "set_tracking_uri"):
        setattr(module, name, log_metric)
    module.MlflowClient = type("MlflowClient", (), {})  # type: ignore[attr-defined]
    module.version = "2"  # type: ignore[attr-defined]
    patch = trackers.patches_for("mlflow")
    assert patch is not None
    patch(module)
    try:
        with module.start_run() as run:
            module.log_metric("loss", 1.0)
            assert f"runs/{run.info.run_id}" == "runs/disabled"
        assert module.MlflowClient().create_run(1).info.run_id.strip()
        assert module.version == "2"
    finally:
        patching.restore_all()


def test_wandb_is_disabled_whatever_the_script_says() -> None:
    module = ModuleType("wandb")
    module.init = lambda *args, **kwargs: (args, kwargs)  # type: ignore[attr-defined]
    module.login = lambda key: pytest.fail("called the server")  # type: ignore[attr-defined]
    patch = trackers.patches_for("wandb")
    assert patch is not None
    patch(module)
    try:
        assert module.login(key="secret")
        assert module.init("job", mode="online") == (("job",), {"mode": "disabled"})
        assert module.init(project="p")[1] == {"project": "p", "mode": "disabled"}
    finally:
        patching.restore_all()


def test_tracker_switches() -> None:
    assert trackers.tracker_environment()["WANDB_MODE"] == "disabled"
    assert trackers.patches_for("numpy") is None


def test_real_tensorboard_writes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer_module = pytest.importorskip("torch.utils.tensorboard.writer")
    patch = trackers.patches_for("torch.utils.tensorboard.writer")
    assert patch is not None
    patch(writer_module)
    try:
        with writer_module.SummaryWriter(str(tmp_path / "runs")) as writer:
            writer.add_scalar("loss", 1.0, 0)
            writer.flush()
            assert writer.get_logdir() == writer.log_dir == str(tmp_path / "runs")
        assert os.listdir(tmp_path / "runs") == []
    finally:
        patching.restore_all()
