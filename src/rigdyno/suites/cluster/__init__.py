"""The cluster suite: one job on 1 to N devices, in PyTorch and TensorFlow, with usage and power over time.

This module chooses the cells; tables, figures, sentences and published tables have a file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UsageError
from rigdyno.base.units import show_seconds
from rigdyno.contracts import Machine, Suite, Wanted
from rigdyno.contracts.options import Count
from rigdyno.plan.request import Request
from rigdyno.plan.resources import sizes, threads_of
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites.cluster import figures, tables, words
from rigdyno.suites.cluster.curves import curves_of
from rigdyno.workloads.datasets.mnist import FASHION, refusal

EPOCH_STEPS = 938  # batches of 64 in the 60,000 images of MNIST

STEPS, REPEATS = 600, 3  # steps of the default job on one device, and its processes

# For 64 images on a current core; an estimate for planning.
STEP_SECONDS = {"mnist_cnn": 0.015, "mnist_cnn_tensorflow": 0.015}

START_SECONDS = {"mnist_cnn": 7.0, "mnist_cnn_tensorflow": 10.0}

LibraryName = Literal["pytorch", "tensorflow"]

HOROVOD = ("horovod", "horovod_mpi")  # next to each library's own arrangement, as in the published jobs

IDLE_SECONDS = 15.0  # of idle cells before and after the jobs

LEAST_STEPS = 40

PUBLISHED_STEP_SECONDS = 0.4  # for 128 images in the published TensorFlow network


class Library(NamedTuple):
    workload: str
    together: str  # its own arrangement of several ranks
    rate: tuple[str, float]  # the option whose value is the number of devices times this

    def options(self, cards: int) -> dict[str, Value]:
        """Return the learning rate, which grows with the number of devices as published: the batch does too."""
        name, one = self.rate
        return {name: one * cards}

    def ways(self, request: Request) -> tuple[str, ...]:
        """Return the arrangements to measure; none if the requested one belongs to another library."""
        known = {*HOROVOD, *(each.together for each in LIBRARIES.values())}
        if request.arrangement in known:
            return tuple(way for way in (self.together, *HOROVOD) if way == request.arrangement)
        return (self.together,) if request.cheap else (self.together, *HOROVOD)


LIBRARIES = {
    "pytorch": Library("mnist_cnn", "ddp", ("learning_rate", 0.01)),
    "tensorflow": Library("mnist_cnn_tensorflow", "multiworker", ("rate_factor", 1.0)),
}


@dataclass(frozen=True)
class ClusterJob:
    steps: int  # on one device
    as_published: bool = False  # with the network, batch and optimizer of the published TensorFlow script


@dataclass(frozen=True, kw_only=True)
class ClusterSuite(Suite):
    """MNIST on 1 to N cards, in PyTorch and TensorFlow, with and without Horovod: run time, usage, power"""

    shows_idle: ClassVar[bool] = True

    devices: tuple[Count, ...] = ()  # numbers of devices (CPU ranks), one after the other; default: 1 to all
    framework: tuple[LibraryName, ...] = ()  # default: all
    beside: str = ""  # an earlier run, such as one on a single computer, to show next to this one

    @property
    def earlier_run(self) -> str | None:
        return self.beside or None

    def cells(self, request: Request, machine: Machine) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            raise UsageError("the cluster suite has no soak; try `rigdyno run mnist_cnn --soak 10m`", key="soak")
        if request.full and request.budget_seconds is not None:
            raise UsageError("the published lengths take what they take; leave out --budget or --full", key="budget")
        repeat, request = self._fit_into_time(request, machine)
        return [Wanted(spec, repeat, repeat) for spec in self._specs(request, machine)]

    def _specs(self, request: Request, machine: Machine) -> list[RunSpec]:
        libraries = {name: LIBRARIES[name].ways(request) for name in self.framework or LIBRARIES}
        return [
            _spec(request, machine, LIBRARIES[name], job, way, cards, nodes)
            for name, ways in libraries.items()
            if ways
            for job in _jobs(request, name)
            for cards, nodes in cluster_sizes(self.devices, request, machine)
            for way in (ways if cards > 1 else ("single",))
        ]

    def _fit_into_time(self, request: Request, machine: Machine) -> tuple[int, Request]:
        """Return the number of processes, and a request that fits the budget: first repeats are reduced, then steps."""
        usual = request.repeat or (1 if request.full else REPEATS)  # one process of the full length is long enough
        if request.budget_seconds is None:
            return usual, request
        specs = [spec for spec in self._specs(request, machine) if _is_installed(spec)]
        starts = sum(START_SECONDS[spec.workload] for spec in specs)
        left = request.budget_seconds - IDLE_SECONDS
        if usual * (starts + sum(spec.budget.seconds for spec in specs)) <= left:
            return usual, request
        repeat = request.repeat or 1
        a_step = sum(STEP_SECONDS[spec.workload] / spec.world_size for spec in specs)
        steps = min(request.steps or STEPS, int((left / repeat - starts) / a_step))
        if steps < LEAST_STEPS:
            need = show_seconds(IDLE_SECONDS + repeat * (starts + LEAST_STEPS * a_step))
            raise BadValue(f"jobs of {LEAST_STEPS} steps take about {need}; try a larger --budget", key="budget")
        return repeat, replace(request, steps=steps)

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        results = curves_of(measurements)
        return Presentation(
            title="cluster: one job on 1 to N cards",
            tables=tuple(table for table in tables.make_tables(results) if table.rows),
            figures=figures.make_figures(results),
            headline=words.headline(results),
            closing=words.closing(results),
        )


def _is_installed(spec: RunSpec) -> bool:
    """Tell whether the arrangement can run here; otherwise its cell takes no time."""
    return catalogue.find_missing(catalogue.load("arrangement", spec.arrangement).requires) is None


def _jobs(request: Request, name: str) -> list[ClusterJob]:
    if not request.full:
        return [ClusterJob(request.steps or STEPS)]
    jobs = [ClusterJob(epochs * EPOCH_STEPS) for epochs in (3, 15)]
    return jobs + [ClusterJob(steps, as_published=True) for steps in (300, 3000) if name == "tensorflow"]


def cluster_sizes(asked: Sequence[int], request: Request, machine: Machine) -> list[tuple[int, int]]:
    """Return pairs of devices and nodes; a node is filled before the next one is used."""
    each = request.ranks or machine.most_ranks
    counts = sorted(set(asked)) or (*sizes(each), *(each * nodes for nodes in sizes(request.nodes)[1:]))
    found = []
    for cards in counts:
        nodes = -(-cards // each)
        if cards % nodes:
            raise UsageError(
                f"{cards} cards can't be shared out evenly over {nodes} nodes of {each}", key="set.devices"
            )
        if nodes > request.nodes:
            room = f"{request.nodes} node{'s' if request.nodes > 1 else ''} of {each}"
            raise UsageError(
                f"{cards} cards are more than {room}; add --hosts, or --ranks for more a node", key="set.devices"
            )
        found.append((cards, nodes))
    return found


def _data(request: Request) -> dict[str, Value]:
    """Choose real images if they are installed here; what other nodes have is unknown."""
    return {"data": FASHION} if request.nodes == 1 and refusal(FASHION) is None else {}


def _spec(
    request: Request, machine: Machine, library: Library, job: ClusterJob, arrangement: str, cards: int, nodes: int
) -> RunSpec:
    on_cpu = machine.device == "cpu"
    steps = max(1, job.steps // cards)
    step = PUBLISHED_STEP_SECONDS if job.as_published else STEP_SECONDS[library.workload]
    return RunSpec(
        workload=library.workload,
        options={
            **library.options(cards),
            **({"variant": "as_published"} if job.as_published else {}),
            **_data(request),
        },
        arrangement=arrangement,
        launcher=catalogue.load("arrangement", arrangement).launcher,
        world_size=cards,
        nodes=nodes,
        device=machine.device,
        threads=threads_of(request, machine, request.ranks or machine.most_ranks),
        pinned=on_cpu,
        budget=Budget(seconds=max(1.0, steps * step), job_steps=steps),
    )
