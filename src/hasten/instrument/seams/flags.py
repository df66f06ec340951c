"""Seam: switches of the whole process that torch keeps outside of any module.

Each is read before it is changed, and put back as it was read. Denormals can't be read: whether
they are flushed is seen from what a product of small numbers gives, in every thread.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import torch

_TINY = 2.0**-130  # a float32 below the smallest normal number, 2**-126
_GRAIN = 1 << 16  # elements that torch gives to each thread at least, twice over
_PAUSE_HARD = 2  # omp_pause_hard of OpenMP 5.0: threads end, new ones start when needed
#: Backends and operations whose float32 precision has a switch of its own from torch 2.9 on.
_PRODUCTS: tuple[tuple[str, str], ...] = (
    *(("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


class ProcessFlags:
    """Denormals, the precision of float32 products, and cuDNN's choice of algorithms."""

    def __init__(self) -> None:
        self._precision: tuple[str | None, dict[tuple[str, str], str]] | None = None
        self._denormals: bool | None = None  # whether the script itself flushes them
        self._benchmark: bool | None = None

    # --- denormals ------------------------------------------------------------------------

    def flush_denormals(self, on: bool | None) -> None:
        """Take numbers too small for the normal format for zeros; None: as the script has it.

        The control word belongs to a thread. New threads have that of the thread which started
        them, so the pool of the intra-op threads is ended and starts anew where OpenMP can.
        """
        if self._denormals is None:
            self._denormals = self.denormals_flushed
        wanted = self._denormals if on is None else on
        torch.set_flush_denormal(wanted)
        _restart_threads()

    @property
    def denormals_flushed(self) -> bool:
        """Whether every intra-op thread takes them for zeros now."""
        small = torch.full((_GRAIN * torch.get_num_threads(),), _TINY)
        # Compared as bits: a thread that flushes would take them for zeros anyway.
        return not bool((small * 0.5).view(torch.int32).any())

    # --- products of float32 --------------------------------------------------------------

    @property
    def float32_precision(self) -> str:
        """ "highest", "high" or "medium"; "mixed" where the script has set parts of it."""
        try:
            return str(torch.get_float32_matmul_precision())
        except RuntimeError:
            return "mixed"

    def set_float32_precision(self, which: str | None) -> None:
        """Let products of float32 be computed in less; None: as the script has it."""
        if self._precision is None:
            now = self.float32_precision
            self._precision = (None if now == "mixed" else now), _parts()
        name, parts = self._precision
        if which is not None:
            torch.set_float32_matmul_precision(which)
            if which == "medium":
                _set_part(("mkldnn", "conv"), "bf16")
            return
        if name is not None:
            torch.set_float32_matmul_precision(name)
        for part, value in parts.items():
            if _parts().get(part) != value:
                _set_part(part, value)

    # --- cuDNN ----------------------------------------------------------------------------

    @property
    def cudnn_benchmark(self) -> bool:
        """Whether cuDNN tries its algorithms for each new shape."""
        return bool(torch.backends.cudnn.benchmark)

    def set_cudnn_benchmark(self, on: bool | None) -> None:
        """Let cuDNN try its algorithms, or not; None: as the script has it."""
        if self._benchmark is None:
            self._benchmark = self.cudnn_benchmark
        torch._C._set_cudnn_benchmark(self._benchmark if on is None else on)


def _parts() -> dict[tuple[str, str], str]:
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {} if read is None else {part: read(*part) for part in _PRODUCTS}


def _set_part(part: tuple[str, str], value: str) -> None:
    write = getattr(torch._C, "_set_fp32_precision_setter", None)
    if write is not None:
        write(*part, value)


def _restart_threads() -> None:
    """End the pools of OpenMP threads, which have the control words of the past.

    Compiled code and other packages bring an OpenMP library of their own, with its own pool.
    """
    for pause in _symbols("omp_pause_resource_all"):
        pause(_PAUSE_HARD)


def _symbols(name: str) -> list[Any]:
    """A function in every OpenMP library that the process has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "omp" in line}
    except OSError:  # not Linux
        return []
    found = []
    for path in sorted(p for p in paths if p.startswith("/") and ".so" in p):
        with suppress(OSError, AttributeError):
            found.append(getattr(ctypes.CDLL(path), name))
    return found


def denormal_share(tensors: list[torch.Tensor]) -> float:
    """The part of all elements that are below the smallest normal number, but not zero.

    Large tensors are sampled. Read as bits, since arithmetic may flush what is looked for.
    """
    found = count = 0
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.is_sparse:
            continue
        flat = tensor.detach().reshape(-1)
        bits = flat[:: max(1, flat.numel() // _GRAIN)].view(torch.int32)
        found += int((((bits & 0x7F800000) == 0) & ((bits & 0x007FFFFF) != 0)).sum())
        count += bits.numel()
    return found / max(1, count)
