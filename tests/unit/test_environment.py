"""The machine's facts, read from file trees as they look on machines that we don't have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hasten import environment
from hasten.environment import Environment, Gpu

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU = "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2_takes_the_tightest_of_nested_groups(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job/step\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/user.slice/cpu.max": "800000 100000",
            "sys/fs/cgroup/user.slice/job/cpu.max": "150000 100000",
            "sys/fs/cgroup/user.slice/job/step/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/memory.max": "max",
            "sys/fs/cgroup/user.slice/job/memory.max": "8589934592",
        },
    )
    assert sorted(environment.cgroup_quotas(root)) == [1.5, 8.0]
    assert environment.cgroup_memory(root) == [8589934592]
    usable, because = environment.usable_cores(64, root, {})
    assert usable <= 1.5
    assert because in ("cgroup quota", "processor affinity")


def test_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=x:/\n",
            "proc/self/mountinfo": "\n".join(
                line.format(top="/docker/abc") for line in (V1_CPU, V1_MEMORY)
            ),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824",
        },
    )
    assert environment.cgroup_quotas(root) == [0.5]
    assert environment.cgroup_memory(root) == [2**30]


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    """The path in /proc/self/cgroup is the host's, the mount begins elsewhere."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../kubepods/pod1\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "200000 100000",
        },
    )
    assert environment.cgroup_quotas(root) == [2.0]


@pytest.mark.parametrize("quota", ["-1", "max 100000", "", "nonsense"])
def test_no_quota(tmp_path: Path, quota: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": quota,
        },
    )
    assert environment.cgroup_quotas(root) == []


def test_no_files_at_all(tmp_path: Path) -> None:
    found = environment.look(tmp_path, {"PATH": ""})
    assert found.cores >= 1
    assert found.gpus == ()
    assert found.cpu_flags == ()
    assert found.shm is None
    assert found.compiler is None


@pytest.mark.parametrize(
    ("env", "because"),
    [
        ({"SLURM_CPUS_PER_TASK": "1"}, "SLURM_CPUS_PER_TASK=1"),
        ({"SLURM_CPUS_ON_NODE": "1"}, "SLURM_CPUS_ON_NODE=1"),
        ({"SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "64"}, "SLURM_CPUS_PER_TASK=1"),
    ],
)
def test_slurm(
    tmp_path: Path, env: dict[str, str], because: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert environment.usable_cores(64, tmp_path, env) == (1.0, because)


def test_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert environment.usable_cores(64, tmp_path, {}) == (2.0, "processor affinity")


X86 = "model name\t: Intel(R) Xeon(R)\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
ARM = "CPU implementer : 0x41\nFeatures        : fp asimd sve bf16 svebf16\n"
OLD = "model name\t: Intel(R) Core(TM)\nflags\t\t: fpu avx avx2\n"


@pytest.mark.parametrize(
    ("cpuinfo", "flags", "bf16"),
    [
        (X86, ("avx2", "avx512f", "avx512_bf16", "amx_bf16"), True),
        (ARM, ("asimd", "sve", "bf16", "svebf16"), True),
        (OLD, ("avx2",), False),
    ],
)
def test_processor(tmp_path: Path, cpuinfo: str, flags: tuple[str, ...], bf16: bool) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": cpuinfo})
    assert environment.processor(root)[1] == flags
    assert environment.look(root, {}).cpu_bf16 is bf16


def test_gpus_from_the_drivers_files(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 1\n",
            "proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA L4\n",
        },
    )
    assert environment.gpus(root) == (Gpu("NVIDIA H200"), Gpu("NVIDIA L4"))


def test_gpus_from_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    monkeypatch.setattr(environment, "_output", lambda *_: "NVIDIA L4, 23034\n")
    assert environment.gpus() == (Gpu("NVIDIA L4", 23034 * 2**20),)


@pytest.mark.parametrize(
    ("files", "env", "kind"),
    [
        ({"proc/version": "Linux version 5.15 (Microsoft@Microsoft.com)"}, {}, "WSL"),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/a.sif"}, "apptainer"),
        ({}, {}, None),
    ],
)
def test_container(
    tmp_path: Path, files: dict[str, str], env: dict[str, str], kind: str | None
) -> None:
    assert environment.container(tree(tmp_path, files), env) == kind


def machine(**changes: object) -> Environment:
    facts: dict[str, object] = dict(
        system="Linux 6", python="3.11.7", torch="2.14.1", cpu="A", cpu_flags=("avx2",)
    )
    facts |= dict(cpu_bf16=True, physical_cores=32, logical_cores=64, usable_cores=64.0)
    facts |= dict(omp_threads=None, memory=2**36, usable_memory=2**36, shm=2**34)
    facts |= dict(shm_free=2**34, gpus=(), compiler="g++", container=None, load=0.1, limits=())
    return Environment(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"usable_cores": 2.0}, "2 of 64 cores usable: cgroup quota"),
        ({"usable_cores": 1.5}, "1.5 of 64 cores usable: cgroup quota"),
        ({"omp_threads": 1}, "OMP_NUM_THREADS=1 holds PyTorch below the 64 cores"),
        ({"usable_memory": 2**32}, "4.0 of 64.0 GiB of memory usable: cgroup limit"),
        ({"shm_free": 2**26}, "/dev/shm has 64 MiB free"),
        ({"load": 60.0}, "load average 60.0"),
        ({"torch": None}, "torch is not installed"),
        ({"compiler": None}, "torch.compile cannot be used on the CPU"),
        ({"cpu_bf16": False}, "no bfloat16 instructions"),
    ],
)
def test_limits(changes: dict[str, object], sentence: str) -> None:
    found = list(environment._limits(machine(**changes), "cgroup quota", {}))
    assert len(found) == 1
    assert found[0].startswith(sentence) or sentence in found[0]


def test_no_limits() -> None:
    assert list(environment._limits(machine(), "", {})) == []


def test_hidden_gpus() -> None:
    found = machine(gpus=(Gpu("H"),))
    env = {"CUDA_VISIBLE_DEVICES": ""}
    assert list(environment._limits(found, "", env)) == ["CUDA_VISIBLE_DEVICES hides the GPUs"]


@pytest.mark.parametrize(("usable", "cores"), [(0.5, 1), (1.5, 1), (2.0, 2), (7.999, 8)])
def test_whole_cores(usable: float, cores: int) -> None:
    assert machine(usable_cores=usable).cores == cores


def test_this_machine() -> None:
    found = environment.look()
    assert 1 <= found.cores <= found.logical_cores
    assert found.torch
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    described = found.describe()
    assert described["cores"] == found.cores
    assert isinstance(described["limits"], list)
