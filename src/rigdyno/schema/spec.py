"""Describe what is to be measured: a configuration, a cell with its participants, and the plan of a run."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Literal

import msgspec

from rigdyno.base.units import show_bytes

RANK, SAMPLER = "rank", "sampler"  # roles; only ranks step

USUAL_LAUNCHER = "process"  # one worker process on this machine

# Values of `launcher` for runs that only a user's own script or `rigdyno infer` can repeat.
OWN_LOOP, INFER = "own_loop", "infer"

IDLE = "idle"  # the workload that does nothing: its power is subtracted from that of other workloads

BATCHES = ("batch_size", "batch", "physical_batch")  # options that set the samples per batch, in any workload

OF_UPDATE = "update."  # prefix that marks an option of the update among those of the workload

WARM_UP_ROWS = 5  # minimum

ROWS_FOR_A_VERDICT = 10  # the order-statistic interval of a median needs 6 for 95 %; ten leave room for a hiccup or two

FolderName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]

Value = bool | int | float | str

Arm = Literal["a", "b"]


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """One process that takes part in a cell: a rank that steps, a node's sampler, later a server or a party.

    Times of two participants can be compared only if both use the same clock.
    """

    id: FolderName  # name of its folder in the cell's folder
    role: str = RANK
    rank: Count | None = None  # None: it doesn't step
    node: Count = 0
    device: str | None = None
    clock: str = "node0"


class ClockPair(msgspec.Struct, frozen=True, kw_only=True):
    """How far the clock of another node was ahead of that of the node that leads the run."""

    clock: str
    when: Literal["start", "end"]  # of the cell
    at_ns: int  # by the leader's clock
    offset_ns: int
    uncertainty_ns: int  # largest possible error of the offset: half of the round trip


def assign_participants(ranks: int, nodes: int, device: str, *, sampled: bool = True) -> tuple[Participant, ...]:
    """Return the ranks, assigned to nodes in consecutive blocks, and the sampler of each node."""
    each = max(1, ranks // max(1, nodes))
    numbered = device != "cpu" and ":" not in device and ranks > 1
    stepping = [
        Participant(
            id=f"rank{rank}",
            rank=rank,
            node=rank // each,
            device=f"{device}:{rank % each}" if numbered else device,
            clock=clock_of(rank // each),
        )
        for rank in range(ranks)
    ]
    return (*stepping, *(sampler_of(node) for node in range(nodes) if sampled))


def sampler_of(node: int) -> Participant:
    return Participant(id=f"node{node}", role=SAMPLER, node=node, clock=clock_of(node))


def clock_of(node: int) -> str:
    """Return the name of a node's monotonic clock, which all its processes share."""
    return f"node{node}"


def on_node(participants: Iterable[Participant], node: int) -> list[Participant]:
    return [each for each in participants if each.node == node]


def ranks_among(participants: Iterable[Participant]) -> list[Participant]:
    """Return the participants that step, in the order of their ranks."""
    stepping = [(each.rank, each) for each in participants if each.rank is not None]
    return [each for _, each in sorted(stepping, key=lambda pair: pair[0])]


def sampler_among(participants: Iterable[Participant]) -> Participant | None:
    return next((each for each in participants if each.role == SAMPLER), None)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a cell may measure. With `stop="clock"` it is a soak: it lasts `seconds` and is shown over time."""

    seconds: float = 10.0
    max_steps: int | None = None
    job_steps: int | None = None  # all steps of a job, warm-up included: it ends after them, however long they take
    job_items: int | None = None  # the same in items, if the batch size is known only at run time
    stop: Literal["steps", "clock"] = "steps"
    most_seconds: float = 0.0  # longer limit that applies until there are enough rows for a verdict
    start_seconds: float | None = None  # allowance for the start; a longer start shortens the rest; None: no limit

    @property
    def is_job(self) -> bool:
        return self.job_steps is not None or self.job_items is not None

    @property
    def rows(self) -> int:
        """Return how many steady rows of each kind a verdict needs."""
        return 0 if self.stop == "clock" else min(ROWS_FOR_A_VERDICT, self.max_steps or ROWS_FOR_A_VERDICT)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to be measured. Creating it has no side effects and imports nothing."""

    workload: str  # a catalogue name, or FILE.py:FUNCTION
    options: dict[str, Value] = {}  # those set by the user or the suite
    defaults: dict[str, Value] = {}  # the other options at planning time: a later version may change defaults
    largest: dict[str, int] = {}  # options to be made as large as fits, and the bytes of memory to fit into
    share: float = 1.0  # share of the largest value that fits; the cell is measured with it
    update: str = "plain"
    arrangement: str = "single"
    launcher: str = USUAL_LAUNCHER
    world_size: int = 1  # number of ranks, or of devices of one process, on all nodes together
    nodes: int = 1
    device: str = "cpu"
    threads: int | None = None
    pinned: bool = False  # each rank to its own cores
    seed: int = 0
    python: str | None = None  # the interpreter of another environment
    budget: Budget = Budget()

    @property
    def has_budget(self) -> bool:
        """Return whether Rigdyno decides when to stop, and not the user's script or `rigdyno infer`."""
        return self.launcher not in (OWN_LOOP, INFER)

    @property
    def resolved(self) -> dict[str, Value]:
        """Return all options; an option that is set to its default makes no difference."""
        return {**self.defaults, **self.options}

    @property
    def is_open(self) -> bool:
        """Return whether a search for the largest value of an option is still to be done."""
        return any(name not in self.options for name in self.largest)

    def key(self) -> str:
        """Return a hash of what is measured, without how long, how often and how it is started.

        Resuming, comparing and matching use it.
        """
        import hashlib  # loads OpenSSL, which a listing can do without

        kind, soak = self.device.partition(":")[0], self.budget.stop == "clock"
        part = "" if self.share == 1.0 else f"{self.share!r} of the "
        rules = {name: f"{part}largest in {size} B" for name, size in self.largest.items()}  # the value is a result
        options = sorted({**{name: repr(value) for name, value in self.resolved.items()}, **rules}.items())
        how = (self.update, self.arrangement, self.world_size, self.nodes, kind, self.threads, soak)
        job = [figure for figure in (self.budget.job_steps, self.budget.job_items) if figure is not None]
        what = (self.workload, options, *how, *job)
        return hashlib.blake2b(msgspec.json.encode(what), digest_size=8).hexdigest()

    def search_key(self) -> str:
        """Return a key that is the same for all shares of one largest value."""
        return msgspec.structs.replace(self, share=1.0).key()

    def named_options(self, *, rules_alone: bool = False) -> dict[str, str]:
        """Return the options that were set, as text: '96 (largest in 8 GB)', with `rules_alone` 'largest in 8 GB'."""
        words = {name: str(value) for name, value in self.options.items()}
        part = "" if self.share == 1.0 else f"{Fraction(self.share).limit_denominator(1000)} of the "
        for name, size in self.largest.items():
            rule = f"{part}largest in {show_bytes(size)}"
            words[name] = f"{words[name]} ({rule})" if name in words and not rules_alone else rule
        return words


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One process group to be measured: a configuration, its participants, and the number of the repeat."""

    name: str  # also the name of its folder
    spec: RunSpec
    participants: tuple[Participant, ...] = ()
    repeat: int = 1
    pair: int | None = None  # number of the pair in a duel: its two cells are in memory together and take turns
    arm: Arm | None = None
    spare: bool = False  # runs only if time is left after all others and its interval is among the widest
    attempt_of: str | None = None  # in a search: the cell that will run with the largest value that fits
    allowed_bytes: int | None = None  # enforced limit of the device's memory, or on a CPU of the machine's
    refusal: str | None = None  # why it can't run here; kept so that every table can show it
    memory_bytes: int | None = None
    seconds: float = 0.0  # expected, start-up included

    @property
    def is_planned(self) -> bool:
        """Return whether the plan asks for it: it isn't part of a duel or of the noise floor, nor spare."""
        return self.pair is None and not self.spare


class DuelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How two arms are compared. Pairs beyond `least_pairs` run only while the answer is undecided."""

    what: str  # the workload that both have in common; empty if they have none
    names: tuple[str, str]  # of A and B, as text
    margin: float  # differences up to this share count as none
    least_pairs: int
    budget_seconds: float
    by: Literal["time", "joules"] = "time"
    turn_seconds: float = 0.0  # shortest duration of a turn; 0: as short as the clock allows
    self_duel: bool = False  # both arms are the same: any difference is the noise of the machine


def is_endpoint(text: str) -> bool:
    """Return whether the text is HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How the nodes of a run find each other; not part of the configuration. The run's secret is never stored."""

    rendezvous: str = ""  # HOST:PORT of the first node, if nodes are started by hand
    hosts: tuple[str, ...] = ()  # for ssh; the first is this machine
    python: str | None = None  # the interpreter on the other nodes; None: the same path as here
    slurm: dict[str, str] = {}  # options for Slurm: partition, time, account, ...


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one `rigdyno run` will do."""

    name: str
    suite: str | None = None
    label: str | None = None
    cells: tuple[Cell, ...] = ()
    reach: Reach = Reach()
    duel: DuelPlan | None = None  # of the cells that have a pair
    noise_missing: str | None = None  # why a suite doesn't measure the noise of the machine
    budget_seconds: float | None = None  # wall-clock limit for everything together; None: not given
    spare_seconds: float = 0.0  # for the spare cells
    beside: str | None = None  # an earlier run that its tables show next to this one
    foreseen: str | None = None  # which rows will be SUSPECT for lack of time, and the --budget that they need

    @property
    def is_duel(self) -> bool:
        """Return whether this is only a duel; a suite may contain a duel of a cell with itself."""
        return self.duel is not None and not self.duel.self_duel

    @property
    def runnable(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.refusal is None)

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.runnable if not cell.spare) + self.spare_seconds

    @property
    def memory_bytes(self) -> int | None:
        """Return the memory of the largest cell, as cells run one after the other; None if unknown for all."""
        known = [cell.memory_bytes for cell in self.runnable if cell.memory_bytes is not None]
        return max(known) if known else None
