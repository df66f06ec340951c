"""What the machine is, and what limits training on it; found without importing torch.

The number of cores that may be used is often not what the machine has: containers, batch systems
and affinity hold a process to fewer. Every reader takes the root of the file system, so that tests
can feed it a `/proc` and `/sys` of their own.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

#: Processor features that decide which kernels PyTorch can use.
FLAGS_THAT_MATTER = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_bf16", "amx_int8", "asimd", "sve", "bf16", "svebf16"),
)
#: Features that multiply bfloat16 in hardware.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """A graphics processor: its name, and its memory in bytes where that is known."""

    name: str
    memory: int | None = None


@dataclass(frozen=True)
class Environment:
    """The machine as this process may use it. Sizes are in bytes.

    Attributes:
        usable_cores: how many cores the process may use; a fraction under a processor quota.
        cores: the same as a whole number, at least 1.
        cpu_bf16: whether the processor multiplies bfloat16 in hardware.
        compiler: the C++ compiler that torch.compile needs on the CPU; None when missing.
        limits: what holds training back here, a sentence each.
    """

    system: str
    python: str
    torch: str | None
    cpu: str
    cpu_flags: tuple[str, ...]
    cpu_bf16: bool
    physical_cores: int
    logical_cores: int
    usable_cores: float
    omp_threads: int | None
    memory: int
    usable_memory: int
    shm: int | None
    shm_free: int | None
    gpus: tuple[Gpu, ...]
    compiler: str | None
    container: str | None
    load: float | None
    limits: tuple[str, ...]

    @property
    def cores(self) -> int:
        """Whole cores that may be used, at least 1."""
        return max(1, math.floor(self.usable_cores + 0.01))

    def describe(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        facts = dataclasses.asdict(self)
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()
        } | {"cores": self.cores}


def look(root: Path = Path("/"), env: Mapping[str, str] | None = None) -> Environment:
    """Look at the machine.

    Args:
        root: where `/proc`, `/sys` and the like are read from.
        env: environment variables; those of this process when None.
    """
    env = os.environ if env is None else env
    logical = psutil.cpu_count() or 1
    usable, cores_because = usable_cores(logical, root, env)
    memory = int(psutil.virtual_memory().total)
    usable_memory = min([memory, *cgroup_memory(root)])
    model, flags = processor(root)
    shm, shm_free = shared_memory(root)
    environment = Environment(
        system=f"{platform.system()} {platform.release()}".strip(),
        python=platform.python_version(),
        torch=torch_version(),
        cpu=model,
        cpu_flags=flags,
        cpu_bf16=bool(BF16_FLAGS & set(flags)),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable,
        omp_threads=_whole(env.get("OMP_NUM_THREADS", "").split(",")[0]),
        memory=memory,
        usable_memory=usable_memory,
        shm=shm,
        shm_free=shm_free,
        gpus=gpus(root),
        compiler=cpp_compiler(env),
        container=container(root, env),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        limits=(),
    )
    return dataclasses.replace(environment, limits=tuple(_limits(environment, cores_because, env)))


# --- cores -----------------------------------------------------------------------------------


def usable_cores(logical: int, root: Path, env: Mapping[str, str]) -> tuple[float, str]:
    """How many of `logical` cores this process may use, and what holds it to that."""
    bounds = [(float(logical), "")]
    with suppress(AttributeError, OSError):  # no affinity on macOS
        bounds.append((float(len(os.sched_getaffinity(0))), "processor affinity"))
    bounds += [(quota, "cgroup quota") for quota in cgroup_quotas(root)]
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if (count := _whole(env.get(name, ""))) is not None:
            bounds.append((float(count), f"{name}={count}"))
            break
    return min(bounds, key=lambda bound: bound[0])


def cgroup_quotas(root: Path = Path("/")) -> list[float]:
    """Processor quotas in cores of every control group that this process is in."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        limit, period, *_ = [*_read(folder / "cpu.max").split(), "", ""]  # version 2
        if not limit:  # version 1
            limit = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        allowed, length = _whole(limit), _whole(period)
        if allowed and length:
            quotas.append(allowed / length)
    return quotas


def cgroup_memory(root: Path = Path("/")) -> list[int]:
    """Memory limits in bytes of every control group that this process is in."""
    limits = []
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            if limit := _whole(_read(folder / name)):
                limits.append(limit)
    return limits


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that may still be taken: what is available here and under every control group."""
    left = [int(psutil.virtual_memory().available)]
    for folder in _cgroup_folders(root, "memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _whole(_read(folder / limit)), _whole(_read(folder / used))
            if most and now is not None:
                # Cached files count as used, but are given up when memory is short.
                stat = _read(folder / "memory.stat")
                cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
                left.append(most - now + (int(cached.group(1)) if cached else 0))
    return max(0, min(left))


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of all groups around it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = _cgroup_mount(root, controller if controllers else None)
        if mount is None:
            continue
        point, base = mount
        inside = os.path.relpath(path, base)
        # A path outside of what is mounted: a container that sees its own group as the top.
        parts = () if inside.startswith("..") or inside == "." else Path(inside).parts
        top = root / point.lstrip("/")
        yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _cgroup_mount(root: Path, controller: str | None) -> tuple[str, str] | None:
    """Where a controller (None: version 2) is mounted, and which group is at the top there."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        fields, (kind, *_, options) = mount.split(), source.split() or [""] * 2
        wanted = kind == "cgroup2" if controller is None else kind == "cgroup"
        if wanted and (controller is None or controller in options.split(",")):
            return _unescape(fields[4]), _unescape(fields[3])
    return None


# --- processor, memory, GPUs -------------------------------------------------------------------


def processor(root: Path = Path("/")) -> tuple[str, tuple[str, ...]]:
    """The processor's name and those of its features that matter."""
    if sys.platform == "darwin" and root == Path("/"):
        return _apple_processor()
    text = _read(root / "proc/cpuinfo")
    name = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(listed.group(1).split()) if listed else set()
    model = name.group(1).strip() if name else platform.processor() or platform.machine()
    return model, tuple(flag for flag in FLAGS_THAT_MATTER if flag in present)


def _apple_processor() -> tuple[str, tuple[str, ...]]:
    name = _output("sysctl", "-n", "machdep.cpu.brand_string").strip()
    bf16 = _output("sysctl", "-n", "hw.optional.arm.FEAT_BF16").strip() == "1"
    return name or platform.machine(), ("bf16",) if bf16 else ()


def shared_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Size and free space of `/dev/shm`, through which workers hand over batches."""
    try:
        usage = psutil.disk_usage(str(root / "dev/shm"))
    except OSError:
        return None, None
    return int(usage.total), int(usage.free)


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """NVIDIA's GPUs: from the driver's library, else its tool, else its files."""
    if root == Path("/"):
        with suppress(OSError, AttributeError):
            return tuple(_gpus_of_library(ctypes.CDLL("libnvidia-ml.so.1")))
        command = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
        if found := re.findall(r"^(.+), (\d+)$", _output(*command), re.MULTILINE):
            return tuple(Gpu(name, int(size) * MIB) for name, size in found)
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    names = [re.search(r"^Model:\s*(.+)$", _read(file), re.MULTILINE) for file in files]
    return tuple(Gpu(name.group(1).strip()) for name in names if name)


def _gpus_of_library(nvml: ctypes.CDLL) -> Iterator[Gpu]:
    """Ask NVIDIA's management library; raises OSError when it refuses."""
    if nvml.nvmlInit_v2() != 0:
        raise OSError("NVML could not be initialised")
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        name = ctypes.create_string_buffer(96)
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name)))
        known = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        yield Gpu(name.value.decode(errors="replace"), int(memory[0]) if known else None)
    nvml.nvmlShutdown()


# --- software --------------------------------------------------------------------------------


def torch_version() -> str | None:
    """The installed torch, by its metadata; None when there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def cpp_compiler(env: Mapping[str, str]) -> str | None:
    """The C++ compiler that torch.compile would use on the CPU; None when it cannot compile."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    found = shutil.which(env.get("CXX") or default, path=env.get("PATH"))
    return found if headers.exists() else None


def container(root: Path, env: Mapping[str, str]) -> str | None:
    """What the process runs inside of: a container's kind, "WSL", or None."""
    if "microsoft" in _read(root / "proc/version").lower():
        return "WSL"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in env:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in env or "SINGULARITY_CONTAINER" in env:
        return "apptainer"
    return None


# --- limits ------------------------------------------------------------------------------------


def _limits(machine: Environment, cores_because: str, env: Mapping[str, str]) -> Iterator[str]:
    """What holds training back, a sentence each."""
    if cores_because and machine.usable_cores < machine.logical_cores:
        usable = f"{machine.usable_cores:g} of {machine.logical_cores} cores usable"
        yield f"{usable}: {cores_because}"
    if machine.omp_threads is not None and machine.omp_threads < machine.cores:
        held = f"OMP_NUM_THREADS={machine.omp_threads}"
        yield f"{held} holds PyTorch below the {machine.cores} cores that are usable"
    if machine.usable_memory < machine.memory:
        sizes = f"{machine.usable_memory / GIB:.1f} of {machine.memory / GIB:.1f} GiB"
        yield f"{sizes} of memory usable: cgroup limit"
    if machine.shm_free is not None and machine.shm_free < GIB:
        free = f"/dev/shm has {machine.shm_free // MIB} MiB free"
        yield f"{free}: workers pass batches through it and die of bus errors when it is full"
    if machine.load is not None and machine.load > 0.5 * machine.usable_cores:
        yield f"load average {machine.load:.1f}: other work makes measuring slower"
    if machine.torch is None:
        yield "torch is not installed for this Python"
    if machine.compiler is None:
        yield "no C++ compiler with Python's headers: torch.compile cannot be used on the CPU"
    if not machine.gpus and not machine.cpu_bf16:
        yield "the processor has no bfloat16 instructions: bfloat16 is likely slower than float32"
    if machine.gpus and env.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield "CUDA_VISIBLE_DEVICES hides the GPUs"


def _read(path: Path) -> str:
    """A file's text without surrounding space; empty when it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    """A positive whole number, or None ("max", -1, empty)."""
    return int(text) if text.strip().isdecimal() and int(text) > 0 else None


_unescape = partial(re.sub, r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)))


def _output(*command: str) -> str:
    """What a command prints; empty when it is missing, fails or takes too long."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout
