"""Stands for hasten in the tests of the shield: starts one trial, as another user where asked.

    shield_driver.py LIBRARY MODE UID FOLDER CAP PROGRAM [ARGUMENTS...]

Prints ``started <keeper> <scratch>``, waits, prints ``ended <status> <reason>``, and cleans up.
"""

import os
import sys


def main() -> None:
    library, mode, uid, folder, cap, *argv = sys.argv[1:]
    if int(uid) != os.getuid():
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    sys.path.insert(0, library)
    from hasten.instrument.shield.launch import ShieldMode, launch

    environment = {**os.environ, "PYTHONPATH": os.environ["SHIM"], "SHIELD_TEST_MARK": library}
    process = launch(
        argv,
        env=environment,
        cwd=folder,
        mode=ShieldMode(mode),
        stdout=1,
        stderr=2,
        cap=int(cap) or None,
    )
    with process:
        print("started", process.pid, process.scratch, flush=True)
        status = process.wait()
        print("ended", status, process.reason, flush=True)
    assert not process.left, process.left
    print("cleaned", flush=True)


if __name__ == "__main__":
    main()
