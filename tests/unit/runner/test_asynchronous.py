"""Meters over a device that works asynchronously: right figures, and wrong ones as soon as any one wait is left out."""

import ast
import socket
import struct
from pathlib import Path

import pytest

from rigdyno.frameworks.torch import Torch
from rigdyno.runner import here
from rigdyno.runner.device import waiter_for
from rigdyno.runner.meter import ASYNCHRONOUS_BLOCK_NS, StepMeter
from rigdyno.runner.pairs.turns import REQUEST, SOCKET_KIND, TurnMeter
from rigdyno.runner.phases import PhaseClock
from rigdyno.schema.samples import PHASES, STEP_FIELDS, STEP_STRUCT, Header, RowFile, read_rows
from rigdyno.schema.spec import Budget
from rigdyno.schema.system import Accelerator
from simulated_device import LAUNCHING, SOURCE, NotReady, SimulatedTorch
from support import ManualClock, a_rank, a_system

STEP, LONGER, BUILDING = 0.003, 0.005, 0.05
LAUNCHING_NS = round(LAUNCHING * 1e9)


class Rig:
    """One or two simulated devices that still work on what was built, and a file for rows."""

    def __init__(self, path, skipped=None):
        self.clock, self.path = ManualClock(), path
        self.torch = SimulatedTorch(self.clock, devices=2)
        self.torch.skipped = skipped
        self.framework = Torch(api=self.torch)
        for queue in self.torch.queues:
            queue.allocate(10)
            queue.work(BUILDING)

    def file(self, *kinds):
        return RowFile(self.path, Header(fields=STEP_FIELDS, kinds=kinds, participant=a_rank()))

    def durations(self):
        """Return the duration in nanoseconds and the number of steps of every row."""
        _, rows = read_rows(self.path)
        return [(int(row["end_ns"] - row["start_ns"]), int(row["steps"])) for row in rows]


def settled(durations):
    return len(durations) >= 5


def is_right(durations, *seconds):
    """Every row lasts as long as the device worked on its steps: the host is ahead of it from the first launch on."""
    assert durations
    whole = round(max(seconds) * 1e9)
    behind = LAUNCHING_NS * (1 + seconds.index(max(seconds)))  # the slowest device is launched after the others
    return all(duration == steps * whole + behind for duration, steps in durations)


def steps_of_one_device(rig, monkeypatch):
    meter = StepMeter(
        rig.file("step"), rig.clock, Budget(seconds=0.5), synchronise=rig.framework.waiter("cuda"), settled=settled
    )
    while meter.more():
        rig.torch.queues[0].work(STEP)
        meter.step()
    meter.close()
    return is_right(rig.durations(), STEP)


def steps_of_a_job(rig, monkeypatch):
    """The last of them don't fill a block."""
    budget = Budget(seconds=0.5, job_steps=50)
    meter = StepMeter(rig.file("step"), rig.clock, budget, synchronise=rig.framework.waiter("cuda"), settled=settled)
    while meter.more():
        rig.torch.queues[0].work(STEP)
        meter.step()
    meter.close()
    found = rig.durations()
    return sum(steps for _, steps in found) == 50 and found[-1][1] < found[-2][1] and is_right(found, STEP)


def steps_of_two_devices(rig, monkeypatch):
    wait = waiter_for(rig.framework, ("cuda:0", "cuda:1"))
    meter = StepMeter(rig.file("step"), rig.clock, Budget(seconds=0.5), synchronise=wait, settled=settled)
    while meter.more():
        rig.torch.queues[0].work(STEP)
        rig.torch.queues[1].work(LONGER)
        meter.step()
    meter.close()
    return is_right(rig.durations(), STEP, LONGER)


def a_users_own_loop(rig, monkeypatch):
    monkeypatch.setattr(here, "find_loaded_frameworks", lambda: [rig.framework])
    card = Accelerator(kind="cuda", name="Simulated")
    wait = here._make_waiter(a_system(accelerators=(card, card)))
    rig.torch.queues[1].peak = 0  # never used
    meter = StepMeter(rig.file("step"), rig.clock, None, synchronise=wait, settled=settled)
    for _ in range(100):
        rig.torch.queues[0].work(STEP)
        meter.step()
    meter.close()
    return is_right(rig.durations(), STEP)


def turns_of_an_arm(rig, monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, SOCKET_KIND)
    with ours, theirs:
        for steps in (3, 2, 0):
            ours.sendall(REQUEST.pack(steps, 0, 0))
        wait = rig.framework.waiter("cuda")
        meter = TurnMeter(rig.file("turn"), struct.Struct(STEP_STRUCT), rig.clock, theirs, synchronise=wait)
        while meter.more():
            rig.torch.queues[0].work(STEP)
            meter.step()
        meter.close()
    return [steps for _, steps in rig.durations()] == [3, 2] and is_right(rig.durations(), STEP)


def phases_of_steps(rig, monkeypatch):
    """Compare phases with the device's times on the host's clock: a phase belongs to the row in which it began."""
    queue = rig.torch.queues[0]
    phases = PhaseClock(rig.file(*PHASES), rig.clock, rig.framework, "cuda")
    truth = []
    for _ in range(3):
        phases.mark("")
        began_ns = queue.reached_ns()
        for name, seconds in (("forward", STEP), ("backward", LONGER)):
            queue.work(seconds)
            phases.mark(name)
            truth.append((PHASES.index(name), began_ns, queue.empty_ns))
            began_ns = queue.empty_ns
        phases.flush()
        queue.work(BUILDING)  # something that belongs to no step
    phases.close()
    _, rows = read_rows(rig.path)
    return [(row["kind"], row["start_ns"], row["end_ns"]) for row in rows] == truth


SCENARIOS = [
    steps_of_one_device,
    steps_of_a_job,
    steps_of_two_devices,
    a_users_own_loop,
    turns_of_an_arm,
    phases_of_steps,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_figures_are_those_of_the_device(scenario, tmp_path, monkeypatch):
    assert scenario(Rig(tmp_path / "rows"), monkeypatch)


def sites_in_the_source():
    """Every line of runner/ that waits for a device."""
    found = set()
    for path in (SOURCE / "runner").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and not node.args and not node.keywords:
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
                if name.lstrip("_") == "synchronise":
                    found.add((path.relative_to(SOURCE).as_posix(), node.lineno))
    return found


SITES = sorted(sites_in_the_source())


def named(site):
    """Return the id of a test: the function instead of the line, which may move."""
    file, line = site
    tree = ast.parse((SOURCE / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return f"{Path(file).stem}.{max((f for f in functions if f.lineno <= line), key=lambda f: f.lineno).name}"


def test_every_line_that_waits_is_reached_and_no_other_one_waits(tmp_path, monkeypatch):
    reached = set()
    for scenario in SCENARIOS:
        rig = Rig(tmp_path / scenario.__name__)
        scenario(rig, monkeypatch)
        reached |= rig.torch.waited
    assert reached == set(SITES)


@pytest.mark.parametrize("site", SITES, ids=named)
def test_without_any_one_of_them_a_figure_is_wrong(site, tmp_path, monkeypatch):
    assert not all(_is_right_without(site, scenario, tmp_path, monkeypatch) for scenario in SCENARIOS)


def _is_right_without(site, scenario, folder, monkeypatch):
    try:
        return scenario(Rig(folder / scenario.__name__, skipped=site), monkeypatch)
    except NotReady:
        return False


def test_rows_are_long_enough_to_wait_rarely(tmp_path, monkeypatch):
    rig = Rig(tmp_path / "rows")
    steps_of_one_device(rig, monkeypatch)
    assert rig.durations()[-1][0] >= ASYNCHRONOUS_BLOCK_NS
