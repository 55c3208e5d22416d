"""What is asked for: one cell of a plan, and the plan."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Literal

import msgspec

from rigdyno.schema.participant import Participant
from rigdyno.units import show_bytes

Value = bool | int | float | str

# Stand where a launcher's name would: a user's own script ran it, or `rigdyno infer` did. Nobody else can run it again.
OWN_LOOP, INFER = "own_loop", "infer"
IDLE = "idle"  # the workload that does nothing: what a rig draws then is taken off what others draw
BATCHES = ("batch_size", "batch", "physical_batch")  # options that count the samples of a batch, in any workload
OF_UPDATE = "update."  # what names of options begin with that are the update's, among those of the workload

WARM_UP_ROWS = 5  # the least
ROWS_FOR_A_VERDICT = 10  # the order-statistic interval of a median needs 6 for 95 %; ten leave room for a hiccup or two


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a cell may measure. A `clock` budget is a soak: as long as it says, and shown over time."""

    seconds: float = 10.0
    max_steps: int | None = None
    job_steps: int | None = None  # all steps of a job, warm-up included: it ends with them, however long they take
    job_items: int | None = None  # the same in items, where the batch is known only when it runs
    stop: Literal["steps", "clock"] = "steps"
    most_seconds: float = 0.0  # until the rows for a verdict are there; counts where it is more
    start_seconds: float | None = None  # what the start may take, more is taken off; None: as long as it does

    @property
    def is_job(self) -> bool:
        return self.job_steps is not None or self.job_items is not None

    @property
    def rows(self) -> int:
        """That a verdict needs behind warm-up, of each kind."""
        return 0 if self.stop == "clock" else min(ROWS_FOR_A_VERDICT, self.max_steps or ROWS_FOR_A_VERDICT)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to be measured. Inert: building it sets nothing and imports nothing."""

    workload: str  # a catalogue name, or FILE.py:FUNCTION
    options: dict[str, Value] = {}  # those that somebody chose
    defaults: dict[str, Value] = {}  # what all others were when it was planned: a later version may have others
    largest: dict[str, int] = {}  # options that are as large as fits, and into how many bytes of memory
    share: float = 1.0  # of the largest value that fits: what is measured with it
    update: str = "plain"
    arrangement: str = "single"
    launcher: str = "process"
    world_size: int = 1  # ranks, or devices of one process, of all nodes together
    nodes: int = 1
    device: str = "cpu"
    threads: int | None = None
    pinned: bool = False  # each rank to its own cores
    seed: int = 0
    python: str | None = None  # the interpreter of another environment
    budget: Budget = Budget()

    @property
    def has_budget(self) -> bool:
        """Whether Rigdyno decides when it is enough; else whoever ran it does."""
        return self.launcher not in (OWN_LOOP, INFER)

    @property
    def resolved(self) -> dict[str, Value]:
        """Every option: a default that is set by hand is no difference."""
        return {**self.defaults, **self.options}

    @property
    def is_open(self) -> bool:
        """Whether an option is still to be found that is as large as fits."""
        return any(name not in self.options for name in self.largest)

    def key(self) -> str:
        """What is measured, apart from how long, how often and how it is started: resuming, comparing and matching
        go by it."""
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
        """The same for all that are a share of one largest value."""
        return msgspec.structs.replace(self, share=1.0).key()

    def named_options(self, *, rules_alone: bool = False) -> dict[str, str]:
        """Those that somebody chose, in words: '96 (largest in 8 GB)'. `rules_alone`: without what became of them."""
        words = {name: str(value) for name, value in self.options.items()}
        part = "" if self.share == 1.0 else f"{Fraction(self.share).limit_denominator(1000)} of the "
        for name, size in self.largest.items():
            rule = f"{part}largest in {show_bytes(size)}"
            words[name] = f"{words[name]} ({rule})" if name in words and not rules_alone else rule
        return words


Arm = Literal["a", "b"]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One process group to be measured: a configuration, who takes part, and the number of the repeat."""

    name: str  # the cell's folder
    spec: RunSpec
    participants: tuple[Participant, ...] = ()
    repeat: int = 1
    pair: int | None = None  # of a duel: the two cells with this number are resident together and take turns
    arm: Arm | None = None
    spare: bool = False  # runs only if time is left when all others have run, and its figure is among the widest
    attempt_of: str | None = None  # of a search: the cell that is to run with the largest value that fits
    allowed_bytes: int | None = None  # of the device's memory, which on a CPU is the machine's; it is fenced in
    refusal: str | None = None  # why it can't run here; kept so that every table can show it
    memory_bytes: int | None = None
    seconds: float = 0.0  # expected, start-up included

    @property
    def is_planned(self) -> bool:
        """Neither for the machine's own noise or a duel, nor for time that is left over."""
        return self.pair is None and not self.spare


class DuelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How two arms are held against each other. Pairs beyond the least run only while it isn't decided."""

    what: str  # the workload that both have in common; empty if they have none
    names: tuple[str, str]  # of A and B, in words
    margin: float  # differences up to this share count as none
    least_pairs: int
    budget_seconds: float
    by: Literal["time", "joules"] = "time"
    turn_seconds: float = 0.0  # the least that a turn takes; 0: as short as the clock allows
    self_duel: bool = False  # both arms are the same: what differs is the machine's own noise


def is_endpoint(text: str) -> bool:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How the nodes of a run find each other; no part of what is measured. The run's secret is never stored."""

    rendezvous: str = ""  # HOST:PORT of the first node, where they are started by hand
    hosts: tuple[str, ...] = ()  # for ssh; the first is this machine
    python: str | None = None  # the interpreter on the other nodes; None: of the same path as here
    slurm: dict[str, str] = {}  # what is asked of Slurm: partition, time, account, ...

    def lacks_something(self, cells: Iterable[Cell]) -> bool:
        has = {"by_hand": is_endpoint(self.rendezvous), "ssh": bool(self.hosts)}
        nodes = {"ssh": len(self.hosts)}
        return any(
            not has.get(cell.spec.launcher, True) or nodes.get(cell.spec.launcher, cell.spec.nodes) < cell.spec.nodes
            for cell in cells
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one `rigdyno run` will do."""

    name: str
    suite: str | None = None
    label: str | None = None
    cells: tuple[Cell, ...] = ()
    reach: Reach = Reach()
    duel: DuelPlan | None = None  # of the cells that have a pair
    noise_missing: str | None = None  # why a suite doesn't measure the machine's own noise
    budget_seconds: float | None = None  # for everything together, kept by the clock; None: nobody said
    spare_seconds: float = 0.0  # for the spare cells
    beside: str | None = None  # an earlier run that its tables are to show beside this one
    foreseen: str | None = None  # which rows will be SUSPECT for want of time, and what would settle them

    @property
    def is_duel(self) -> bool:
        """Nothing but a duel; a suite has one too, with itself."""
        return self.duel is not None and not self.duel.self_duel

    @property
    def runnable(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.refusal is None)

    @property
    def seconds(self) -> float:
        return sum(cell.seconds for cell in self.runnable if not cell.spare) + self.spare_seconds

    @property
    def memory_bytes(self) -> int | None:
        """Cells run one after the other: the largest counts. None if no cell can tell."""
        known = [cell.memory_bytes for cell in self.runnable if cell.memory_bytes is not None]
        return max(known) if known else None
