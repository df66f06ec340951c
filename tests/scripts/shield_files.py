"""Uses every file function that training scripts use and checks that each does what it should.

Runs in a folder with ``a`` and ``log``, the link ``latest`` to ``a``, ``old/x`` and ``sub/y``;
passes in plain Python as well (on a copy), which is what makes it a fair judge of the shield.
"""

import contextlib
import glob
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = os.getcwd()


def names(folder: str = ".") -> list[str]:
    return sorted(os.listdir(folder))


def refused(error: type[OSError], action: object, *args: object) -> OSError:
    try:
        action(*args)  # type: ignore[operator]
    except error as caught:
        return caught
    raise AssertionError(f"{action} did not fail")


def reading_and_writing() -> None:
    assert Path("a").read_text() == "orig\n"
    with open("log", "a") as log:
        log.write("more\n")
    assert Path("log").read_text() == Path(HERE, "log").read_text() == "log0\nmore\n"
    assert names() == ["a", "latest", "log", "old", "sub"]
    with open("log", "rb+") as log:
        log.write(b"L")
    assert Path("log").read_bytes().startswith(b"Log0")
    refused(FileExistsError, open, "a", "x")
    refused(IsADirectoryError, open, "sub", "w")
    refused(FileNotFoundError, open, "none/file", "w")
    descriptor = os.open("raw", os.O_WRONLY | os.O_CREAT, 0o640)
    os.write(descriptor, b"12345")
    os.close(descriptor)
    assert os.path.getsize("raw") == 5 and os.stat("raw").st_mode & 0o777 == 0o640
    assert os.listdir(b"sub") == [b"y"]


def renaming() -> None:
    Path("ck.tmp").write_bytes(b"x" * 10)
    os.replace("ck.tmp", "ck.pt")
    assert not os.path.exists("ck.tmp") and os.path.getsize("ck.pt") == 10
    os.rename("sub", "sub2")
    assert Path("sub2/y").read_text() == "y\n" and not os.path.exists("sub")
    Path("sub2/n").write_text("n")
    assert names("sub2") == ["n", "y"]
    Path("sub2").rename("sub")
    assert names("sub") == ["n", "y"]
    refused(OSError, os.rename, "old", "sub")  # not empty
    assert refused(FileNotFoundError, os.rename, "nope", "b").filename == "nope"


def links() -> None:
    assert os.path.islink("latest") and os.readlink("latest") == "a" and not os.path.islink("a")
    Path("latest").write_text("through")
    assert Path("a").read_text() == "through" and os.path.islink("latest")
    os.symlink(HERE + "/ck.pt", "absolute")
    assert os.readlink("absolute") == os.path.realpath("absolute") == HERE + "/ck.pt"
    assert Path("absolute").read_text() == "x" * 10
    os.link("ck.pt", "hard")
    assert os.path.samefile("hard", "ck.pt")
    os.truncate("hard", 3)
    assert os.path.getsize("ck.pt") == 3
    os.remove("latest")
    os.symlink("ck.pt", "latest")
    assert Path("latest").resolve() == Path(HERE, "ck.pt")


def folders() -> None:
    os.makedirs("runs/1/2", exist_ok=True)
    Path("runs/1/2/z.txt").write_text("z")
    assert glob.glob("runs/**/*.txt", recursive=True) == ["runs/1/2/z.txt"]
    assert [n for _, _, n in os.walk("runs")][-1] == ["z.txt"]
    refused(OSError, os.rmdir, "old")
    shutil.rmtree("old")
    assert not os.path.exists("old")
    assert refused(FileNotFoundError, open, "old/x").filename == "old/x"
    shutil.copytree("runs", "runs2")
    with os.scandir(".") as entries:
        kinds = {e.name: (e.is_file(), e.is_dir(), e.is_symlink()) for e in entries}
    assert kinds["a"] == (True, False, False) and kinds["sub"] == (False, True, False)
    assert kinds["latest"] == (True, False, True)
    os.mkdir("inside")
    os.chdir("inside")
    assert os.getcwd() == HERE + "/inside" == str(Path.cwd())
    Path("file").write_text("1")
    os.chdir("..")
    assert Path(HERE, "inside", "file").exists()
    assert refused(FileNotFoundError, os.remove, "nope").filename == "nope"


def properties() -> None:
    os.chmod("log", 0o600)
    assert os.stat("log").st_mode & 0o777 == 0o600
    os.utime("ck.pt", (1, 1))
    assert os.stat("ck.pt").st_mtime == 1
    os.chmod("sub", 0o700)
    shutil.copy2("a", "sub/b")
    assert os.access("sub/b", os.W_OK) and Path("sub/b").read_text() == "through"


def temporary_files() -> None:
    folder = tempfile.mkdtemp()
    Path(folder, "q").write_text("q")
    shutil.rmtree(folder)
    with tempfile.TemporaryDirectory(dir=".") as here:
        Path(here, "q").write_text("q")
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        file.write(b"1")
    os.replace(file.name, "from_temporary")
    assert Path("from_temporary").read_bytes() == b"1"


def commands() -> None:
    subprocess.run(["cp", "ck.pt", "best.pt"], check=True)
    assert os.path.getsize("best.pt") == 3
    subprocess.run("echo x >> log; mv best.pt b2.pt; rm a", shell=True, check=True)
    assert Path("log").read_text().endswith("x\n")
    assert os.path.exists("b2.pt") and not os.path.exists("a")
    assert os.system(f"cp {HERE}/ck.pt {HERE}/ck3.pt") == 0 and os.path.exists("ck3.pt")
    assert os.system("exit 3") == 3 << 8
    subprocess.run(["sh", "-c", "echo 1 > made"], check=True, cwd="sub")
    assert Path("sub/made").read_text() == "1\n"
    code = "import pathlib; pathlib.Path('py.txt').write_text('1')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert os.path.exists("py.txt")
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "echo 1 > spawned"], dict(os.environ))
    assert os.waitpid(pid, 0)[1] == 0 and os.path.exists("spawned")
    assert subprocess.check_output(["pwd"], text=True).strip().endswith(HERE)


def write_in_worker(name: str) -> None:
    Path(name).write_text("worker")
    os.replace(name, "of_" + name)


def workers() -> None:
    for method in ("fork", "spawn", "forkserver"):
        worker = multiprocessing.get_context(method).Process(target=write_in_worker, args=(method,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0, method
        assert Path("of_" + method).read_text() == "worker"


def library_in_c() -> None:
    import ctypes

    assert ctypes.CDLL(None).creat(b"made_in_c", 0o644) >= 0
    assert os.path.exists("made_in_c")


def databases() -> None:
    with contextlib.closing(sqlite3.connect("study.db")) as database:
        database.execute("create table t (x)")
        database.commit()
    assert os.path.getsize("study.db") > 0


if __name__ == "__main__":
    assert "HASTEN_SHIELD" not in os.environ
    reading_and_writing()
    library_in_c()
    renaming()
    links()
    folders()
    properties()
    temporary_files()
    commands()
    workers()
    if "--database" in sys.argv:
        databases()
    print("all as in plain Python")
