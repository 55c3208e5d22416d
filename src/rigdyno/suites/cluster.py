"""The cluster suite: one job on 1 to N cards, in PyTorch and in TensorFlow, with usage and power over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from rigdyno import catalogue
from rigdyno.contracts import SuiteRequest, Wanted
from rigdyno.errors import BadValue, UnknownName, UsageError
from rigdyno.schema.measured import Measurement
from rigdyno.schema.spec import Budget, RunSpec, Value
from rigdyno.schema.view import Presentation
from rigdyno.suites import _cluster_figures as figures
from rigdyno.suites import _cluster_tables as tables
from rigdyno.suites import _cluster_words as words
from rigdyno.suites._cluster_curves import curves_of
from rigdyno.suites.scaling import sizes, threads_of
from rigdyno.units import show_seconds
from rigdyno.workloads._mnist import FASHION, refusal

EPOCH_STEPS = 938  # of 64 of MNIST's 60,000 images
STEPS, REPEATS = 600, 3  # of the default job on one card, and its processes
STEP_SECONDS = {"mnist_cnn": 0.015, "mnist_cnn_tensorflow": 0.015}  # of 64 images on a core of today, to plan by
START_SECONDS = {"mnist_cnn": 7.0, "mnist_cnn_tensorflow": 10.0}
HOROVOD = ("horovod", "horovod_mpi")  # beside each library's own arrangement, as the published jobs were run
IDLE_SECONDS = 15.0  # before and after
LEAST_STEPS = 40
PUBLISHED_STEP_SECONDS = 0.4  # of 128 images in the published TensorFlow network


class Library(NamedTuple):
    workload: str
    together: str  # its own arrangement of several ranks
    rate: tuple[str, float]  # the option that is the number of cards times this

    def options(self, cards: int) -> dict[str, Value]:
        """Many cards make fewer steps with larger batches: the learning rate grows with their number, as published."""
        name, one = self.rate
        return {name: one * cards}

    def ways(self, request: SuiteRequest) -> tuple[str, ...]:
        """The arrangements of several ranks, side by side; none: what was asked for is another library's."""
        known = {*HOROVOD, *(each.together for each in LIBRARIES.values())}
        if request.arrangement in known:
            return tuple(way for way in (self.together, *HOROVOD) if way == request.arrangement)
        return (self.together,) if request.cheap else (self.together, *HOROVOD)


LIBRARIES = {
    "pytorch": Library("mnist_cnn", "ddp", ("learning_rate", 0.01)),
    "tensorflow": Library("mnist_cnn_tensorflow", "multiworker", ("rate_factor", 1.0)),
}


@dataclass(frozen=True)
class Job:
    steps: int  # that one card would take
    as_published: bool = False  # with the network, batch and optimizer of the published TensorFlow script


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """MNIST on 1 to N cards, in PyTorch and TensorFlow, with and without Horovod: run time, usage, power"""

    excerpt: ClassVar[bool] = False
    takes: ClassVar[tuple[str, ...]] = ("cards", "framework", "beside")
    shows_idle: ClassVar[bool] = True

    def cells(self, request: SuiteRequest) -> Sequence[Wanted]:
        if request.soak_seconds is not None:
            raise UsageError("the cluster suite has no soak; try `rigdyno run mnist_cnn --soak 10m`", key="soak")
        if request.full and request.budget_seconds is not None:
            raise UsageError("the published lengths take what they take; leave out --budget or --full", key="budget")
        repeat, request = _in_time(request)
        return [Wanted(spec, repeat, repeat) for spec in _specs(request)]

    def present(self, measurements: Sequence[Measurement]) -> Presentation:
        shown = curves_of(measurements)
        return Presentation(
            title="cluster: one job on 1 to N cards",
            tables=tuple(table for table in tables.all_of(shown) if table.rows),
            figures=figures.all_of(shown),
            headline=words.headline(shown),
            closing=words.closing(shown),
        )


def _specs(request: SuiteRequest) -> list[RunSpec]:
    libraries = {name: LIBRARIES[name].ways(request) for name in _asked(request.frameworks)}
    return [
        _spec(request, LIBRARIES[name], job, way, cards, nodes)
        for name, ways in libraries.items()
        if ways
        for job in _jobs(request, name)
        for cards, nodes in laid_out(request)
        for way in (ways if cards > 1 else ("single",))
    ]


def _in_time(request: SuiteRequest) -> tuple[int, SuiteRequest]:
    """How many processes, and a job that is short enough for them: first repeats are given up, then steps."""
    usual = request.repeat or (1 if request.full else REPEATS)  # at full length one takes long enough
    if request.budget_seconds is None:
        return usual, request
    specs = [spec for spec in _specs(request) if _is_installed(spec)]
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


def _is_installed(spec: RunSpec) -> bool:
    """What isn't takes no time."""
    return catalogue.missing(catalogue.load("arrangement", spec.arrangement).requires) is None


def _asked(frameworks: Sequence[str]) -> Sequence[str]:
    for name in frameworks:
        if name not in LIBRARIES:
            raise UnknownName("framework of the cluster suite", name, LIBRARIES, key="framework")
    return frameworks or tuple(LIBRARIES)


def _jobs(request: SuiteRequest, name: str) -> list[Job]:
    if not request.full:
        return [Job(request.steps or STEPS)]
    jobs = [Job(epochs * EPOCH_STEPS) for epochs in (3, 15)]
    return jobs + [Job(steps, as_published=True) for steps in (300, 3000) if name == "tensorflow"]


def laid_out(request: SuiteRequest) -> list[tuple[int, int]]:
    """Cards and nodes: a node is filled before the next one is used."""
    each = request.ranks or request.most_ranks
    asked = request.cards or (*sizes(each), *(each * nodes for nodes in sizes(request.nodes)[1:]))
    found = []
    for cards in asked:
        nodes = -(-cards // each)
        if cards % nodes:
            raise UsageError(f"{cards} cards can't be shared out evenly over {nodes} nodes of {each}", key="cards")
        if nodes > request.nodes:
            room = f"{request.nodes} node{'s' if request.nodes > 1 else ''} of {each}"
            raise UsageError(
                f"{cards} cards are more than {room}; add --hosts, or --ranks for more a node", key="cards"
            )
        found.append((cards, nodes))
    return found


def _data(request: SuiteRequest) -> dict[str, Value]:
    """Real images where they are installed; what other nodes have, this one doesn't know."""
    return {"data": FASHION} if request.nodes == 1 and refusal(FASHION) is None else {}


def _spec(request: SuiteRequest, library: Library, job: Job, arrangement: str, cards: int, nodes: int) -> RunSpec:
    on_cpu = request.device == "cpu"
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
        device=request.device,
        threads=threads_of(request, request.ranks or request.most_ranks),
        pinned=on_cpu,
        budget=Budget(seconds=max(1.0, steps * step), job_steps=steps),
    )
