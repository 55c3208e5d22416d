"""Describes the environment of a run: what could explain a number, and nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rigdyno.base.linux import ROOT, parse_selected_word, read_text
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
    # Not every variable of TensorFlow: TF_CONFIG contains addresses.
    *("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS"),
)

GIT_SECONDS = 5


def describe_environment(root: Path = ROOT) -> Environment:
    return Environment(
        python=platform.python_version(),
        packages=_packages(),
        variables=select_speed_variables(os.environ),
        governor=read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        huge_pages=parse_selected_word(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        load_average=_load_average(),
        rigdyno_git=read_git_state(Path(__file__).resolve().parent.parent),
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def select_speed_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect the speed of a framework, without user names."""
    wanted = sorted(name for name in variables if name.startswith(PREFIXES) or name in NAMES)
    users = {variables.get("USER", ""), variables.get("LOGNAME", ""), _home_name()} - {""}
    return {name: _remove_users(variables[name], users) for name in wanted}


def _remove_users(value: str, users: set[str]) -> str:
    """Replace user names in a path by ~: paths often contain one, in a home folder or as a part of a cache folder."""
    if "/" not in value and "\\" not in value:
        return value
    value = re.sub(r"((?:/home|/Users)/|\\Users\\)[^/\\:;,\s]+", "~", value)
    for user in sorted(users, key=len, reverse=True):  # a short name may be a part of a long one
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(user)}(?![A-Za-z0-9])", "~", value)
    return value


def _home_name() -> str:
    try:
        return Path.home().name
    except RuntimeError:  # a container's user may have no home
        return ""


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):  # AttributeError: not on every system
        return None


def read_git_state(package: Path) -> GitState | None:
    """Return the state of the package's own checkout, or None: an installed package may be inside another checkout."""
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
