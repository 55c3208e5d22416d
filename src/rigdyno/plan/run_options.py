"""Everything that can be asked of a run, in one table: the flags of `run` and `duel`, the keys of a plan file, the
arguments of `rigdyno.run` and `rigdyno.duel`, their checks and docs/options.md follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rigdyno.errors import BadValue
from rigdyno.launchers._children import SECRET_VARIABLE
from rigdyno.plan.values import (
    ACCURACY,
    COUNTS,
    DURATION,
    HOSTS,
    NAMES,
    SAVED,
    SETTINGS,
    SIZE,
    SLURM,
    SWEEP,
    SWITCH,
    TEXT,
    WEIGHTS,
    WHOLE,
    ValueKind,
)

MOST_REPEATS = 1000  # more is a slip of the finger: nobody waits for it
MOST_NODES = 10_000


@dataclass(frozen=True, kw_only=True)
class RunOption:
    name: str  # the key in a plan file; the flag is the same, with - for _
    kind: ValueKind
    help: str
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    range_words: str = ""  # where 'must be at least' and 'must be at most' don't say it well
    field: str = ""  # of the Request, where it isn't the name
    argument: str = ""  # in Python, where it isn't the name
    of_request: bool = True  # else it is about how a run is carried out, not about what is run
    has_flag: bool = True
    in_plan: bool = True
    in_python: bool = True
    in_duel: bool = False  # a flag and an argument of `duel` too, for both arms
    duel_help: str = ""  # where it differs from a run's
    of_arm: bool = False  # each arm of a duel may have its own
    in_campaign: bool = False  # for all suites at once, too: `rigdyno run all`

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def request_field(self) -> str:
        return self.field or self.name

    @property
    def python_name(self) -> str:
        return self.argument or self.name

    def read(self, value: Any, called: str, *, text: bool = False) -> Any:
        """`called`: what a message calls it; `text`: the value is as a command line has it."""
        try:
            return (self.kind.from_text if text else self.kind.from_value)(value, called)
        except BadValue as error:
            error.key = self.name if error.key is None else f"{self.name}.{error.key}"
            raise

    def require_range(self, number: int) -> None:
        wrong = None
        if self.least is not None and number < self.least:
            wrong = f"must be at least {self.least}, not"
        elif self.most is not None and number > self.most:
            wrong = f"must be at most {self.most}, not"
        if wrong is not None:
            raise BadValue(f"{self.name} {self.range_words or wrong} {number}", key=self.name)


RUN_OPTIONS = (
    RunOption(
        name="target",
        kind=TEXT,
        help="A suite, all of them (all), a workload, FILE.py:FUNCTION, or a plan file that names one of them.",
        has_flag=False,  # but an argument of the command
        in_campaign=True,
    ),
    RunOption(
        name="set",
        kind=SETTINGS,
        help="An option of the workload, or of its update: update.NAME=VALUE.",
        metavar="KEY=VALUE",
        field="options",
        argument="options",
        in_duel=True,
        duel_help="An option of both.",
    ),
    RunOption(name="sweep", kind=SWEEP, help="Every one of these values in turn.", metavar="KEY=A,B"),
    RunOption(
        name="weights",  # an option of the workload that many want to give
        kind=WEIGHTS,
        help="A state dict to begin with, for a model that takes one.",
        metavar="FILE",
        field="options",
        in_plan=False,
        in_python=False,
    ),
    RunOption(
        name="save",  # an option of the workload as well
        kind=SAVED,
        help="Where the trained weights go (.pt, .safetensors), for a model that keeps them: unet3d.",
        metavar="FILE",
        field="options",
        in_plan=False,
        in_python=False,
    ),
    RunOption(
        name="memory",
        kind=SIZE,
        help="What an option set to 'largest' may fill, or suite privacy: 8GB; epyc7763 (8 GB), v100 (16), a100 (40).",
        metavar="SIZE",
        field="memory_bytes",
    ),
    RunOption(
        name="budget",
        kind=DURATION,
        help="For everything together: 30s, 5m, 1h.",
        metavar="TIME",
        field="budget_seconds",
        in_campaign=True,
    ),
    RunOption(
        name="steps",
        kind=WHOLE,
        help="At most so many steps after warm-up, in each process.",
        least=1,
        in_campaign=True,
    ),
    RunOption(
        name="soak",
        kind=DURATION,
        help="One long run: burst against sustained, throttling recognised.",
        metavar="TIME",
        field="soak_seconds",
    ),
    RunOption(
        name="idle",
        kind=DURATION,
        help="How long to measure the idle rig, before and after, for energy net of it (5s with a meter).",
        metavar="TIME",
        field="idle_seconds",
    ),
    RunOption(name="full", kind=SWITCH, help="A suite at full length."),
    RunOption(
        name="repeat",
        kind=WHOLE,
        help="Processes for each configuration.",
        least=1,
        most=MOST_REPEATS,
        in_campaign=True,
    ),
    RunOption(
        name="device",
        kind=TEXT,
        help="cpu, cuda, cuda:1, xpu, mps; else the best that is here.",
        in_duel=True,
        of_arm=True,
        in_campaign=True,
    ),
    RunOption(
        name="threads",
        kind=WHOLE,
        help="CPU threads of the framework.",
        least=1,
        in_duel=True,
        of_arm=True,
        in_campaign=True,
    ),
    RunOption(
        name="ranks",
        kind=WHOLE,
        help="Processes that work together on a node: at most so many in a suite.",
        least=1,
        in_duel=True,
        duel_help="Processes of each arm that work together, where its arrangement has several.",
        in_campaign=True,
    ),
    RunOption(
        name="cards",
        kind=COUNTS,
        help="For the suite cluster: how many cards (CPU ranks), one after the other; else 1 and what there is.",
        metavar="1,2,4",
    ),
    RunOption(
        name="framework",
        kind=NAMES,
        help="For the suite cluster: pytorch, tensorflow or both.",
        metavar="NAMES",
        field="frameworks",
    ),
    RunOption(
        name="beside",
        kind=TEXT,
        help="For the suite cluster: an earlier run, such as a single computer's, to put beside it.",
        metavar="RUN",
    ),
    RunOption(
        name="workload",
        kind=TEXT,
        help="For the suite privacy: your own training, a function that gives model, loss, optimizer and batches.",
        metavar="FILE.py:FUNCTION",
    ),
    RunOption(
        name="until",
        kind=ACCURACY,
        help="For the suite privacy: train each update to this accuracy, and tell what that took.",
        metavar="accuracy=SHARE",
    ),
    RunOption(name="audit", kind=SWITCH, help="For the suite privacy: hold each private update against the auditor."),
    RunOption(
        name="nodes",
        kind=WHOLE,
        help="Machines that work together; the same command on each of them.",
        least=1,
        most=MOST_NODES,
        range_words=f"must be between 1 and {MOST_NODES}, not",
        in_campaign=True,
    ),
    RunOption(
        name="node_rank",
        kind=WHOLE,
        help="Which of them this one is, from 0; tables are made on the first.",
        in_plan=False,  # the same plan is on every node
        in_python=False,  # what a function returns are the tables: it runs on the first
    ),
    RunOption(
        name="hosts",
        kind=HOSTS,
        help="The machines by name, this one first: the others are reached by ssh.",
        metavar="A,B|FILE",
        in_campaign=True,
    ),
    RunOption(
        name="remote_python",
        kind=TEXT,
        help="The interpreter on the other machines; else of the same path.",
        metavar="FILE",
        in_campaign=True,
    ),
    RunOption(
        name="slurm",
        kind=SLURM,
        help="Of salloc: partition, time, account, gres, ...",
        metavar="KEY[=VALUE]",
    ),
    RunOption(
        name="rendezvous",
        kind=TEXT,
        help="Where the first one is found, and a free port of it.",
        metavar="HOST:PORT",
    ),
    RunOption(
        name="secret_file",
        kind=TEXT,
        help=f"What nodes started by hand know each other by (else ${SECRET_VARIABLE}).",
        metavar="FILE",
        of_request=False,
        in_plan=False,
    ),
    RunOption(
        name="seed",
        kind=WHOLE,
        help="Of everything random.",
        least=0,
        most=2**63 - 1,
        range_words="must not be negative, nor 2**63 or more; it is",
        in_duel=True,
        of_arm=True,
        in_campaign=True,
    ),
    RunOption(name="label", kind=TEXT, help="What to call this rig in tables.", in_duel=True, in_campaign=True),
    RunOption(
        name="update",
        kind=TEXT,
        help="How a batch changes the parameters.",
        in_duel=True,
        of_arm=True,
    ),
    RunOption(name="arrangement", kind=TEXT, help="How parties share the work.", of_arm=True),
    RunOption(name="launcher", kind=TEXT, help="How workers are started; inline for debugging."),
    RunOption(
        name="python",
        kind=TEXT,
        help="The interpreter of another environment.",
        has_flag=False,
        in_plan=False,
        in_python=False,
        of_arm=True,
    ),
)

FLAGS = tuple(option for option in RUN_OPTIONS if option.has_flag)
PLAN_KEYS = {option.name: option for option in RUN_OPTIONS if option.in_plan}
ARGUMENTS = {option.python_name: option for option in RUN_OPTIONS if option.in_python}
OF_DUEL = tuple(option for option in RUN_OPTIONS if option.in_duel)
OF_ARM = {option.name: option for option in RUN_OPTIONS if option.of_arm}


def message_for_python(message: str) -> str:
    """The message for somebody who calls from Python: what the command line calls --remote-python is remote_python
    there. Commands in backticks stay as they are."""
    names = {option.flag: name for name, option in ARGUMENTS.items() if option.has_flag}
    return re.sub(r"`[^`]*`|--[a-z]+(-[a-z]+)*", lambda found: names.get(found[0], found[0]), message)
