"""The table of all options of a run.

The flags of `run` and `duel`, the keys of a plan file, the arguments of `rigdyno.run` and `rigdyno.duel`, their checks
and docs/options.md are derived from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rigdyno.base.errors import BadValue
from rigdyno.launchers.nodes.children import SECRET_VARIABLE
from rigdyno.plan.values import (
    DURATION,
    HOSTS,
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

MOST_REPEATS = 1000  # more is probably a typing error

MOST_NODES = 10_000


@dataclass(frozen=True, kw_only=True)
class RunOption:
    name: str  # the key in a plan file; the flag is the same, with - for _
    kind: ValueKind
    help: str
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    range_words: str = ""  # replaces 'must be at least ...' and 'must be at most ...' in messages
    field: str = ""  # of the Request, if it differs from the name
    argument: str = ""  # in Python, if it differs from the name
    of_request: bool = True  # False: how a run is carried out, not what is run
    has_flag: bool = True
    in_plan: bool = True
    in_python: bool = True
    in_duel: bool = False  # also a flag and an argument of `duel`, for both arms
    duel_help: str = ""  # if it differs from the help of `run`
    of_arm: bool = False  # each arm of a duel may have its own value
    in_campaign: bool = False  # also an option of `rigdyno run all`

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
        """Convert a value. `called`: the option's name in messages; `text`: the value is from a command line."""
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
        help="A suite, 'all' suites, a workload, FILE.py:FUNCTION or a plan file.",
        has_flag=False,  # it is the argument of the command
        in_campaign=True,
    ),
    RunOption(
        name="set",
        kind=SETTINGS,
        help="Option of suite or workload (rigdyno list NAME), or update.NAME.",
        metavar="KEY=VALUE",
        field="options",
        argument="options",
        in_duel=True,
        duel_help="Option of the workload, for both arms.",
    ),
    RunOption(name="sweep", kind=SWEEP, help="Run once for each of these values.", metavar="KEY=A,B"),
    RunOption(
        name="weights",  # short for an option of the workload
        kind=WEIGHTS,
        help="Initial weights: the file of a state dict.",
        metavar="FILE",
        field="options",
        in_plan=False,
        in_python=False,
    ),
    RunOption(
        name="save",  # short for an option of the workload
        kind=SAVED,
        help="File for trained weights, .pt or .safetensors: unet3d.",
        metavar="FILE",
        field="options",
        in_plan=False,
        in_python=False,
    ),
    RunOption(
        name="memory",
        kind=SIZE,
        help="Memory limit for 'largest' and privacy: 8GB, or epyc7763, v100, a100.",
        metavar="SIZE",
        field="memory_bytes",
    ),
    RunOption(
        name="budget",
        kind=DURATION,
        help="Time for the whole run: 30s, 5m, 1h.",
        metavar="TIME",
        field="budget_seconds",
        in_campaign=True,
    ),
    RunOption(
        name="steps",
        kind=WHOLE,
        help="Maximum steps of each process after warm-up.",
        least=1,
        in_campaign=True,
    ),
    RunOption(
        name="soak",
        kind=DURATION,
        help="Long run: compare burst and sustained speed.",
        metavar="TIME",
        field="soak_seconds",
    ),
    RunOption(
        name="idle",
        kind=DURATION,
        help="Time to measure idle power; 5s with a power meter.",
        metavar="TIME",
        field="idle_seconds",
    ),
    RunOption(name="full", kind=SWITCH, help="Run a suite at its published size."),
    RunOption(
        name="repeat",
        kind=WHOLE,
        help="Number of processes for each configuration.",
        least=1,
        most=MOST_REPEATS,
        in_campaign=True,
    ),
    RunOption(
        name="device",
        kind=TEXT,
        help="cpu, cuda, cuda:1, xpu, mps; default: the best.",
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
        help="Ranks on each node; the maximum in a suite.",
        least=1,
        in_duel=True,
        duel_help="Number of ranks of each arm, if its arrangement has several.",
        in_campaign=True,
    ),
    RunOption(
        name="nodes",
        kind=WHOLE,
        help="Machines; start the same command on each.",
        least=1,
        most=MOST_NODES,
        range_words=f"must be between 1 and {MOST_NODES}, not",
        in_campaign=True,
    ),
    RunOption(
        name="node_rank",
        kind=WHOLE,
        help="This node, from 0; node 0 prints the tables.",
        in_plan=False,  # every node has the same plan
        in_python=False,  # the function returns the tables, so it runs on node 0
    ),
    RunOption(
        name="hosts",
        kind=HOSTS,
        help="Machines, this one first; ssh starts the others.",
        metavar="A,B|FILE",
        in_campaign=True,
    ),
    RunOption(
        name="remote_python",
        kind=TEXT,
        help="Python interpreter on the other machines; default: the same path.",
        metavar="FILE",
        in_campaign=True,
    ),
    RunOption(
        name="slurm",
        kind=SLURM,
        help="Option of salloc: partition, time, account, gres.",
        metavar="KEY[=VALUE]",
    ),
    RunOption(
        name="rendezvous",
        kind=TEXT,
        help="Address and port of node 0.",
        metavar="HOST:PORT",
    ),
    RunOption(
        name="secret_file",
        kind=TEXT,
        help=f"Shared secret of nodes started by hand; default: ${SECRET_VARIABLE}.",
        metavar="FILE",
        of_request=False,
        in_plan=False,
    ),
    RunOption(
        name="seed",
        kind=WHOLE,
        help="Random seed.",
        least=0,
        most=2**63 - 1,
        range_words="must not be negative, nor 2**63 or more; it is",
        in_duel=True,
        of_arm=True,
        in_campaign=True,
    ),
    RunOption(name="label", kind=TEXT, help="Name of this machine in tables.", in_duel=True, in_campaign=True),
    RunOption(
        name="update",
        kind=TEXT,
        help="How a batch updates the parameters.",
        in_duel=True,
        of_arm=True,
    ),
    RunOption(name="arrangement", kind=TEXT, help="How ranks or devices share the work.", of_arm=True),
    RunOption(name="launcher", kind=TEXT, help="How processes are started; inline for debugging."),
    RunOption(
        name="python",
        kind=TEXT,
        help="Python interpreter of another environment.",
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
    """Replace flags in a message by the names of Python arguments: --remote-python becomes remote_python.

    Commands in backticks are unchanged."""
    names = {option.flag: name for name, option in ARGUMENTS.items() if option.has_flag}
    return re.sub(r"`[^`]*`|--[a-z]+(-[a-z]+)*", lambda found: names.get(found[0], found[0]), message)
