"""Run a sampler with every probe, fed from files of the real size and format, until SIGTERM:
`python _fed_sampler.py CELL_FOLDER FED_FOLDER`.

No machine has all of them: the host's own files; a server with two packages, eight GPUs and thirty sensors; the rails
and the tegrastats of a Jetson; a wall meter that prints once a second. A real driver answers more slowly than a file,
and that time is not included.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

from rigdyno.base.clock import SystemClock
from rigdyno.base.processes import write_pid
from rigdyno.probes.common.probe_set import ProbeSet
from rigdyno.probes.external import External
from rigdyno.probes.host import Host
from rigdyno.probes.hwmon import Hwmon
from rigdyno.probes.ina3221 import Ina3221
from rigdyno.probes.nvml import Nvml
from rigdyno.probes.rapl import Rapl
from rigdyno.probes.tegrastats import Tegrastats
from rigdyno.runner.sampler import Sampler, pid_files, worker_pids
from rigdyno.schema.layout import CellFolder
from rigdyno.schema.spec import sampler_of

CARDS, CHIPS, SENSORS = 8, 6, 5
LINE = (
    "RAM 613/3964MB (lfb 634x4MB) SWAP 0/1982MB (cached 0MB) CPU [2%@102,1%@102,0%@102,0%@102] EMC_FREQ 0% "
    "GR3D_FREQ 0% PLL@39C CPU@40.5C PMIC@100C GPU@41C AO@46C thermal@41C POM_5V_IN 900/943 POM_5V_GPU 0/0 "
    "POM_5V_CPU 123/123"
)


class FedNvml:
    """Every answer is read from a file."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, file: Path) -> None:
        file.write_text("61000\n")
        self._descriptor = os.open(file, os.O_RDONLY)

    def __getattr__(self, name: str):
        if name == "nvmlDeviceGetCount":
            return lambda: CARDS
        if name == "nvmlDeviceGetHandleByIndex":
            return lambda index: index
        if name in ("nvmlInit", "nvmlShutdown"):
            return lambda: None
        if name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"):
            return lambda card: SimpleNamespace(gpu=self._number() / 1000, used=self._number())
        if name == "nvmlDeviceGetPowerManagementLimitConstraints":
            return lambda card: [self._number(), 350_000]
        return lambda *_: self._number()

    def _number(self) -> int:
        return int(os.pread(self._descriptor, 64, 0))


def feed(root: Path) -> None:
    zones = [(f"intel-rapl:{n}", f"package-{n}") for n in (0, 1)]
    zones += [(f"intel-rapl:{n}:{part}", name) for n in (0, 1) for part, name in enumerate(("core", "uncore", "dram"))]
    for zone, name in [*zones, ("intel-rapl:2", "psys")]:
        write(root / "sys/class/powercap" / zone, name=name, energy_uj=48231337123, max_energy_range_uj=262143328850)
    for number in range(CHIPS):
        sensors = {f"temp{n}_input": 40000 + n for n in range(1, SENSORS + 1)}
        write(
            root / f"sys/class/hwmon/hwmon{number}", name="amdgpu", power1_average=35000000, fan1_input=900, **sensors
        )
    rails = {f"in{n}_label": f"VDD_{n}" for n in (1, 2, 3)} | {f"in{n}_input": 5008 for n in (1, 2, 3)}
    for chip in ("1-0040", "1-0041"):
        amperes = {f"curr{n}_input": 1000 for n in (1, 2, 3)}
        write(root / f"sys/bus/i2c/drivers/ina3221/{chip}/hwmon/hwmon{chip[-1]}", **rails, **amperes)
    (root / "line").write_text(f"{LINE}\n")
    (root / "config.toml").write_text("meters.plug = \"sh -c 'while :; do echo 43.5 W; sleep 1; done'\"\n")


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def main() -> None:
    folder, root = Path(sys.argv[1]), Path(sys.argv[2])
    feed(root)
    clock, told = SystemClock(), []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    tegrastats = ["sh", "-c", f"while :; do cat {root}/line; sleep 0.5; done"]
    probes = {
        "host": Host(clock),
        "nvml": Nvml(FedNvml(root / "number")),
        "rapl": Rapl(root),
        "hwmon": Hwmon(clock, root),
        "ina3221": Ina3221(root),
        "tegrastats": Tegrastats(clock, root, tegrastats),
        "external": External(clock, root / "config.toml"),
    }
    watched = pid_files(folder, 0)
    meters = ProbeSet(probes, lambda: worker_pids(watched), clock)
    if meters.absent:
        sys.exit(f"not all probes could be fed: {meters.absent}")
    write_pid(CellFolder(root).participant("node0").pid)
    sampler = Sampler(CellFolder(root).participant("node0").rows("telemetry"), sampler_of(0), clock, meters)
    parent = os.getppid()
    try:
        sampler.run(lambda: bool(told) or os.getppid() != parent)
    finally:
        sampler.close()


if __name__ == "__main__":
    main()
