"""What is said of a script that failed: the line of its exception, not what torch adds to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hasten.tuning.process import _explain

UNSUPPORTED = """epoch 1
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    model(x)
    ~~~~~^^^
  File "/site-packages/torch/_dynamo/eval_frame.py", line 1059, in compile_wrapper
    raise e.with_traceback(None) from e.__cause__
torch._dynamo.exc.Unsupported: Call to `torch._dynamo.graph_break()`
  Explanation: User-inserted graph break.
  Hint: Remove the call.

  Developer debug context: Called with args

from user code:
   File "/home/me/train.py", line 5, in forward
    torch._dynamo.graph_break()

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're \
reporting a bug to PyTorch).
"""
BACKEND = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    model(x)
torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
CppCompileError: C++ compile error

Command:
g++ /tmp/x.cpp

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""


@pytest.mark.parametrize(
    ("tail", "kind", "message"),
    [
        (UNSUPPORTED, "exception", "torch._dynamo.exc.Unsupported: Call to `torch._dynamo.gr"),
        (
            BACKEND,
            "exception",
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: CppCompileError",
        ),
        (
            "a\nTraceback (most recent call last):\n  x\nMine: no\n  more\nbye\n",
            "exception",
            "Mine",
        ),
        ("Traceback (most recent call last):\n  x\nRuntimeError\n", "exception", "RuntimeError"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried\n", "memory", "torch.OutOfMemory"),
        ("usage: train.py\n\n", "exception", "usage: train.py"),
        ("", "exception", "exit status 1"),
        ("Traceback (most recent call last):\n  x\n", "exception", "  x"),
    ],
)
def test_the_reason(tail: str, kind: str, message: str) -> None:
    gone = _explain(1, tail, None)
    assert gone.kind == kind and gone.message.startswith(message)
    assert len(gone.message) <= 200 and "TORCHDYNAMO" not in gone.message


def test_a_long_line_is_cut() -> None:
    message = _explain(1, f"ValueError: {'x' * 1000}", None).message
    assert len(message) == 200 and message.endswith("...")


def test_of_what_torch_really_writes() -> None:
    code = (
        "import torch\n"
        "def f(x):\n    torch._dynamo.graph_break()\n    return x + 1\n"
        "torch.compile(f, fullgraph=True, backend='eager')(torch.ones(2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert "TORCHDYNAMO_VERBOSE" in done.stderr.strip().splitlines()[-1]
    reason = _explain(done.returncode, done.stderr, None).message
    assert reason.startswith("torch._dynamo.exc.") and "graph_break" in reason
