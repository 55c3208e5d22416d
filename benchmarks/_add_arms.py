"""The two resident processes of faithful.py: `python _add_arms.py published|ours`.

Each prints `ready`. Then, for every number of seconds that it reads, it measures for that time and prints its rate.
Between windows it is idle.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

Window = Callable[[float], float]

PUBLISHED_LOOP = """
import torch

@torch.jit.script
def sum_of_ones():
    left = torch.ones((12288, 12288), dtype=torch.float32)
    right = torch.ones((12288, 12288), dtype=torch.float32)
    return left + right
"""


def published(folder: Path) -> Window:
    """Make a window of the published loop. Its rate is the one that tqdm shows: the mean since its start."""
    from tqdm import tqdm

    script = folder / "published.py"  # TorchScript reads a function's source from its file
    script.write_text(PUBLISHED_LOOP)
    sys.path.insert(0, str(folder))
    from published import sum_of_ones

    total = sum_of_ones()

    def window(seconds: float) -> float:
        nonlocal total
        with Path("/dev/null").open("w") as nowhere, tqdm(file=nowhere) as bar:
            while bar.format_dict["elapsed"] < seconds:
                total += sum_of_ones()
                bar.update()
            return float(bar.n / bar.format_dict["elapsed"])

    return window


def ours(folder: Path) -> Window:
    """Make a window of the worker's own workload, loop and meter."""
    from rigdyno.analyse.steady import settled_so_far
    from rigdyno.base.clock import SystemClock
    from rigdyno.base.units import NS_PER_S
    from rigdyno.contracts import Steps, WorkerPlace
    from rigdyno.frameworks.torch import Torch
    from rigdyno.runner.device import usable_cores
    from rigdyno.runner.meter import StepMeter
    from rigdyno.schema.samples import STEP_FIELDS, WARM_UP, Header, RowFile, read_rows
    from rigdyno.schema.spec import Budget, Participant
    from rigdyno.workloads.tensor_add import TensorAdd

    Torch().prepare(seed=0, threads=None)
    built = TensorAdd(variant="as_published").build(
        WorkerPlace(device="cpu", rank=0, world_size=1, threads=usable_cores(), seed=0)
    )
    assert isinstance(built, Steps)
    [step] = built.kinds.values()
    numbers = itertools.count()

    def window(seconds: float) -> float:
        path = folder / f"{next(numbers)}.rows"
        file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("step",), participant=Participant(id="rank0", rank=0)))
        meter = StepMeter(file, SystemClock(), Budget(seconds=seconds), settled=settled_so_far)
        meter.repeat(step, built.items_per_step)
        meter.close()
        rows = read_rows(path)[1]
        kept = rows[(rows["flags"] & WARM_UP) == 0]
        return float(kept["items"].sum() / (kept["end_ns"] - kept["start_ns"]).sum() * NS_PER_S)

    return window


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        window = {"published": published, "ours": ours}[sys.argv[1]](Path(name))
        print("ready", flush=True)
        for line in sys.stdin:
            print(window(float(line)), flush=True)


if __name__ == "__main__":
    main()
