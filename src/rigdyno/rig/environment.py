"""Everything around a run that could explain a number, and nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rigdyno.rig._files import ROOT, read_text, selected
from rigdyno.schema.system import Environment, GitState

PACKAGES = (
    *("rigdyno", "torch", "numpy", "triton", "intel-extension-for-pytorch", "horovod", "monai"),
    *("tensorflow", "tensorflow-cpu", "opacus", "dp-accounting", "flwr", "numba", "openvino", "onnxruntime"),
    *("tensorstore", "zarr", "nvidia-ml-py", "psutil", "msgspec"),
)
PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "MALLOC_"),
    *("PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "THP_"),
)
NAMES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "LD_PRELOAD"),
    # Not all of TensorFlow's: TF_CONFIG holds addresses.
    *("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS"),
)
GIT_SECONDS = 5


def describe_environment(root: Path = ROOT) -> Environment:
    thp = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return Environment(
        python=platform.python_version(),
        packages=_packages(),
        variables=speed_variables(os.environ),
        governor=read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        huge_pages=selected(thp) if thp else None,
        load_average=_load_average(),
        rigdyno_git=git_state(Path(__file__).resolve().parent.parent),
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def speed_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that change how fast a framework runs."""
    wanted = sorted(name for name in variables if name.startswith(PREFIXES) or name in NAMES)
    users = {variables.get("USER", ""), variables.get("LOGNAME", ""), _home_name()} - {""}
    return {name: _without_user(variables[name], users) for name in wanted}


def _without_user(value: str, users: set[str]) -> str:
    """Paths often hold a user's name: in a home folder, or as a part of a cache folder."""
    if "/" not in value and "\\" not in value:
        return value
    value = re.sub(r"((?:/home|/Users)/|\\Users\\)[^/\\:;,\s]+", "~", value)
    for user in sorted(users, key=len, reverse=True):  # a short name may be a part of a longer one
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(user)}(?![A-Za-z0-9])", "~", value)
    return value


def _home_name() -> str:
    try:
        return Path.home().name
    except RuntimeError:  # a container's user may have no entry anywhere
        return ""


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):  # AttributeError: not on every system
        return None


def git_state(package: Path) -> GitState | None:
    """None where the package doesn't lie in its own checkout: an installed one may lie inside somebody else's."""
    checkout = package.parent.parent
    if package.parent.name != "src" or not (checkout / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(checkout), "status", "--porcelain=v2", "--branch", "--", "src"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _parse_status(answer.stdout) if answer.returncode == 0 else None


def _parse_status(text: str) -> GitState | None:
    match = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", text, re.MULTILINE)
    dirty = any(not line.startswith("#") for line in text.splitlines())
    return GitState(commit=match[1], dirty=dirty) if match else None
