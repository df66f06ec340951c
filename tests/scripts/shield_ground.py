"""A user's folder to run trials in, and the proof that a trial left nothing behind."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).parent
SOURCE = SCRIPTS.parent.parent / "src" / "hasten"
OTHER_UID = 47011
LIMIT_S = 30.0


def interpreter_for(uid: int) -> str | None:
    """A Python that this user may run; the one of the tests often lies in somebody's home."""
    if uid == os.getuid():
        return sys.executable
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3"):
        version = "import sys; raise SystemExit(sys.version_info < (3, 10))"
        command = [candidate, "-c", version]
        if os.path.exists(candidate) and subprocess.run(command, check=False).returncode == 0:
            return candidate
    return None


class Ground:
    """A home with a project in it, owned by ``uid``."""

    def __init__(self, uid: int, mode: str) -> None:
        self.uid, self.mode = uid, mode
        self.python = interpreter_for(uid)
        self.top = Path(tempfile.mkdtemp(prefix="hasten-ground-", dir="/tmp"))
        self.project = self.top / "home" / "project"
        self.library = str(self.top / "lib")
        self.shared_memory = f"hasten_test_{uuid.uuid4().hex}"
        shutil.copytree(SOURCE, self.top / "lib" / "hasten")
        for folder in ("home/project/checkpoints", "home/data", "tmp", "shim"):
            (self.top / folder).mkdir(parents=True)
        shutil.copy(SCRIPTS / "shield_shim.py", self.top / "shim" / "sitecustomize.py")
        for script in ("shield_writer.py", "shield_driver.py", "shield_files.py"):
            shutil.copy(SCRIPTS / script, self.top / script)
        self._fill()
        self._give_away()
        self.before = self.fingerprint()

    def _fill(self) -> None:
        for name in ("train.log", "victim.txt", "to_rename.txt", "best.pt", "commands.log"):
            (self.project / name).write_text(f"the user's {name}\n")
        for step in (1, 97, 98):
            (self.project / "checkpoints" / f"{step}.pt").write_text("precious\n")
        (self.project / "latest").symlink_to("checkpoints/98.pt")
        corner = self.project / "corner"
        for path, text in {"a": "orig", "log": "log0", "old/x": "o", "sub/y": "y"}.items():
            (corner / path).parent.mkdir(parents=True, exist_ok=True)
            (corner / path).write_text(text + "\n")
        (corner / "latest").symlink_to("a")
        (self.top / "home" / "data" / "image.bin").write_bytes(bytes(10_000))

    def _give_away(self) -> None:
        for parent, folders, files in os.walk(self.top):
            os.chown(parent, self.uid, self.uid)
            for name in folders + files:
                os.chown(os.path.join(parent, name), self.uid, self.uid, follow_symlinks=False)
                if not os.path.islink(os.path.join(parent, name)):
                    os.chmod(os.path.join(parent, name), 0o755 if name in folders else 0o644)

    def fingerprint(self) -> dict[str, tuple[object, ...]]:
        """Every entry below the home with kind, owner, mode, time and content."""
        found: dict[str, tuple[object, ...]] = {}
        for parent, folders, files in os.walk(self.top / "home"):
            if ".cache" in folders:
                folders.remove(".cache")  # where scratch folders are; looked at in `leftovers`
            for name in [*folders, *files, "."]:
                path = os.path.join(parent, name)
                entry = os.lstat(path)
                data = b""
                if os.path.islink(path):
                    data = os.readlink(path).encode()
                elif os.path.isfile(path):
                    data = hashlib.sha256(Path(path).read_bytes()).digest()
                top = os.path.normpath(path) == str(self.top / "home")  # .cache is made in it
                stamp = 0 if top else entry.st_mtime_ns
                found[path] = (entry.st_mode, entry.st_uid, entry.st_gid, stamp, data)
        return found

    def start(
        self, program: Sequence[str], *, cap: int = 0, folder: str = ""
    ) -> "subprocess.Popen[str]":
        """Starts the driver with a program to run in the project."""
        assert self.python is not None
        driver = [self.python, str(self.top / "shield_driver.py"), self.library, self.mode]
        rest = [str(self.uid), str(self.project / folder), str(cap), *program]
        home = str(self.top / "home")
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home}
        environment |= {"TMPDIR": str(self.top / "tmp"), "SHIM": str(self.top / "shim")}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
        return subprocess.Popen(
            driver + rest,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def run(self, program: Sequence[str], *, cap: int = 0, folder: str = "") -> tuple[str, str]:
        """Runs a program to its end; returns what it and the driver printed."""
        process = self.start(program, cap=cap, folder=folder)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
        return output, errors

    def writer(self, *arguments: str) -> list[str]:
        """The command line of the program that writes in every way."""
        assert self.python is not None
        return [self.python, str(self.top / "shield_writer.py"), *arguments]

    def processes(self) -> list[str]:
        """What still runs of the trial or of its keepers."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if self.library.encode() in environment + command and state != "Z":
                found.append(f"{pid}: {command.decode(errors='replace')}")
        return found

    def leftovers(self) -> list[str]:
        """Processes, scratch folders, temporary files and shared memory that remain."""
        # Only the topmost names: what lies below may be going away at this very moment.
        scratch = list((self.top / "home" / ".cache" / "hasten" / "scratch").glob("*"))
        temporary = list((self.top / "tmp").iterdir())
        shared = [p for p in Path("/dev/shm").glob("*") if self.shared_memory in p.name]
        return self.processes() + [str(path) for path in scratch + temporary + shared]

    def assert_untouched(self) -> None:
        """Fails unless nothing remains after five seconds and every file is as it was."""
        deadline = time.monotonic() + 5.0
        while self.leftovers() and time.monotonic() < deadline:
            time.sleep(0.05)
        left = self.leftovers()
        assert not left, left
        now = self.fingerprint()
        changed = {p for p in self.before.keys() | now.keys() if self.before.get(p) != now.get(p)}
        assert not changed, changed

    def remove(self) -> None:
        """Ends what a failed test left, and removes the ground."""
        for line in self.processes():
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        shutil.rmtree(self.top, ignore_errors=True)


def sleep_between(process: "subprocess.Popen[str]", low_s: float, high_s: float) -> None:
    """Waits a random time, at whose end the driver must still run."""
    time.sleep(random.uniform(low_s, high_s))
    assert process.poll() is None, process.communicate()
