"""Builds Horovod from its source distribution for the PyTorch and TensorFlow of this environment, and installs it.

`python tools/horovod/build.py`, or `make horovod`. The wheel is kept outside of the tree, by the exact versions of all
that it was built for: the second time, and for another copy of the tree, it is only installed. Its dependencies come
with the extra `horovod`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENT = HERE / "requirement.txt"
COMMANDS = {"g++": "g++", "make": "make", "cmake": "cmake", "mpicxx": "openmpi-bin", "mpirun": "openmpi-bin"}
HEADERS = {"mpi.h": "libopenmpi-dev", "Python.h": "python3-dev"}
MODULES = {"torch": ("torch",), "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel")}  # what brings them
SETTINGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
LINES_SHOWN = 15


def main() -> int:
    lacking = missing()
    if lacking:
        print(f"Horovod can't be built here: {lacking}", file=sys.stderr)
        return 1
    folder = wheels() / key(versions())
    wheel = next(folder.glob("horovod-*.whl"), None)
    if wheel is None and (wheel := built(folder)) is None:
        return 1
    if not is_installed(wheel):
        subprocess.run([*PIP, "install", "--no-deps", "--force-reinstall", str(wheel)], check=True)
    print(f"Horovod is installed, from {wheel}")
    return 0


PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir")


def missing() -> str | None:
    """In one line: what, and how to get it."""
    modules = [name for name in (*MODULES, "setuptools") if importlib.util.find_spec(name) is None]
    commands = [name for name in commands_needed() if shutil.which(name) is None]
    packages = {COMMANDS[name] for name in commands if name in COMMANDS}
    headers = [] if (Path(sysconfig.get_path("include")) / "Python.h").exists() else ["Python.h"]
    if not has_mpi_header():
        headers.append("mpi.h")
    packages |= {HEADERS[name] for name in headers}
    if not modules and not commands and not headers:
        return None
    ways = [f"apt-get install {' '.join(sorted(packages))}"] if packages else []
    ways += ["pip install 'rigdyno[horovod,tensorflow]'"] if modules else []
    return f"there is no {', no '.join([*modules, *commands, *headers])}; try: {'; '.join(ways) or 'another CXX'}"


def has_mpi_header() -> bool:
    if shutil.which("mpicxx") is None:
        return False
    command = ["mpicxx", "-E", "-x", "c++", "-"]
    return subprocess.run(command, input=b"#include <mpi.h>\n", capture_output=True, check=False).returncode == 0


def commands_needed() -> list[str]:
    return [os.environ.get("CXX") or "g++", *(name for name in COMMANDS if name != "g++")]


def wheels() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rigdyno" / "wheels"


def versions() -> dict[str, str]:
    """Return the versions of the distributions, without an import: to load both frameworks takes seconds."""
    horovod = REQUIREMENT.read_text().split()[0].partition("==")[2]
    return {
        "horovod": horovod,
        "python": f"{platform.python_implementation().lower()}{platform.python_version()}",
        **{module: distribution_version(names) for module, names in MODULES.items()},
        "machine": f"{sys.platform}-{platform.machine()}",
    }


def distribution_version(names: Sequence[str]) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def key(known: Mapping[str, str]) -> str:
    return "_".join(f"{name}-{version}" for name, version in known.items())


def built(folder: Path) -> Path | None:
    """The wheel, in its place only once it is whole: another build may be under way."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    print(f"Horovod is being built for {folder.name}: some minutes; its log: {log}", flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as place, log.open("wb") as output:
        code = subprocess.run(command(place), env=environment(), stdout=output, stderr=subprocess.STDOUT).returncode
        wheel = next(Path(place).glob("horovod-*.whl"), None)
        if code or wheel is None:
            print("\n".join(log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]), file=sys.stderr)
            print(f"Horovod can't be built here: see {log}", file=sys.stderr)
            return None
        folder.mkdir(exist_ok=True)
        return wheel.replace(folder / wheel.name)


def command(place: str) -> list[str]:
    """pip's own cache knows a wheel by its source alone, so it has no say in this."""
    options = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--wheel-dir", place]
    return [*PIP, "wheel", *options, "--requirement", str(REQUIREMENT)]


def environment() -> dict[str, str]:
    compiler = {"RIGDYNO_CXX": os.environ.get("CXX") or "g++", "CXX": str(HERE / "cxx")}
    # An outer make's flags name descriptors that its grandchildren don't have.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parallel = {"MAKEFLAGS": f"-j{os.environ.get('HOROVOD_JOBS') or cores}"}
    binaries = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return {**os.environ, **SETTINGS, **compiler, **parallel, **binaries}


def is_installed(wheel: Path) -> bool:
    try:
        origin = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return False
    return origin is not None and wheel.as_uri() in origin


if __name__ == "__main__":
    sys.exit(main())
