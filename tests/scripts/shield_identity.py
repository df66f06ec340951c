"""Prints what a program can see of how it was started, as JSON."""

import json
import os
import signal
import socket
import sys

import __main__

ENVIRONMENT_OF_THE_TEST = ("PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE")

if __name__ == "__main__":
    print(
        json.dumps(
            {
                "main": [__name__, __file__, str(__spec__), __main__.__file__],
                "argv": sys.argv,
                "orig_argv": sys.orig_argv,
                "path": sys.path,
                "executable": sys.executable,
                "cwd": os.getcwd(),
                "stdin": os.readlink("/proc/self/fd/0"),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "signals": [str(signal.getsignal(s)) for s in sorted(signal.valid_signals())],
                "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
                "ids": [os.getuid(), os.geteuid(), os.getgid(), os.umask(0o22)],
                "host": socket.gethostname(),
                "processors": len(os.sched_getaffinity(0)),
                "environment": {
                    k: v for k, v in os.environ.items() if k not in ENVIRONMENT_OF_THE_TEST
                },
            }
        )
    )
