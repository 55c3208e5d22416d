"""What the user asks for, from flags or from a TOML plan that says the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rigdyno.errors import BadValue, UnknownName, UsageError
from rigdyno.schema.spec import Value, is_endpoint
from rigdyno.toml import line_of, read_toml
from rigdyno.units import seconds_from


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A plan before anything is known about the machine. None: the default of whatever is run."""

    target: str = ""
    options: dict[str, Value] = {}
    sweep: dict[str, tuple[Value, ...]] = {}
    budget_seconds: float | None = None
    soak_seconds: float | None = None
    steps: int | None = None  # at most, for each process, after warm-up
    full: bool = False
    repeat: int | None = None
    device: str | None = None
    threads: int | None = None
    ranks: int | None = None  # of one node
    nodes: int = 1
    node_rank: int = 0  # which of them this one is
    rendezvous: str = ""  # HOST:PORT of the first one
    hosts: tuple[str, ...] = ()  # where Rigdyno reaches the nodes by itself; the first is this one
    remote_python: str | None = None  # the interpreter on the other nodes
    slurm: dict[str, str] = {}  # what is asked of Slurm
    seed: int = 0
    label: str | None = None
    update: str = "plain"
    arrangement: str | None = None  # None: the workload's own
    launcher: str | None = None
    python: str | None = None  # the interpreter of another environment
    text_keys: tuple[str, ...] = ()  # options that came as text: '12' may be a number
    places: dict[str, str] = {}  # options that stand in a file, and where: "plan.toml:3"; the file itself under ""

    def __post_init__(self) -> None:
        _check(self)


MOST_NODES = 10_000
_SLURM_KEY = re.compile(r"[a-z][a-z0-9-]*")
MOST_REPEATS = 1000  # more is a slip of the finger: nobody waits for it


def _check(request: Request) -> None:
    _require_utf8(request)
    twice = sorted(set(request.options) & set(request.sweep))
    if twice:
        raise UsageError(f"'{twice[0]}' is both set and swept; choose one")
    if request.soak_seconds is not None and request.budget_seconds is not None:
        raise UsageError("a soak is as long as it says: give --soak or --budget, not both")
    if request.soak_seconds is not None and request.steps is not None:
        raise UsageError("a soak ends with its time: leave out --steps")
    if request.soak_seconds is not None and request.full:
        raise UsageError("--soak and --full are two different runs; choose one")
    for name, number in _counts(request).items():
        if number is not None and number < 1:
            raise BadValue(f"{name} must be at least 1, not {number}")
    _check_nodes(request)
    if request.repeat is not None and request.repeat > MOST_REPEATS:
        raise BadValue(f"repeat must be at most {MOST_REPEATS}, not {request.repeat}")
    if not 0 <= request.seed < 2**63:
        raise BadValue(f"seed must not be negative, nor 2**63 or more; it is {request.seed}")
    empty = [key for key, values in request.sweep.items() if not values]
    if empty:
        raise BadValue(f"the sweep over '{empty[0]}' has no value")


def _check_nodes(request: Request) -> None:
    if not 1 <= request.nodes <= MOST_NODES:
        raise BadValue(f"nodes must be between 1 and {MOST_NODES}, not {request.nodes}")
    if request.nodes == 1 and (request.node_rank or request.rendezvous):
        raise UsageError("--node-rank and --rendezvous are for several nodes; add --nodes")
    if not 0 <= request.node_rank < request.nodes:
        most = request.nodes - 1
        raise BadValue(f"node_rank must be between 0 and {most} with {request.nodes} nodes, not {request.node_rank}")
    if request.hosts and (len(request.hosts) != request.nodes or request.node_rank):
        raise UsageError("--hosts says how many nodes there are, and starts them: leave out --nodes and --node-rank")
    if request.rendezvous and (request.hosts or request.launcher == "slurm"):
        raise UsageError("--rendezvous is for nodes that are started by hand: leave it out")
    by_hand = request.nodes > 1 and not request.hosts and request.launcher != "slurm"
    if by_hand and not is_endpoint(request.rendezvous):
        wrong = f"not '{request.rendezvous}'" if request.rendezvous else "with --rendezvous"
        others = "or --hosts, or --launcher slurm"
        raise BadValue(f"several nodes need HOST:PORT of the first one, {wrong}; e.g. 10.0.0.1:29500; {others}")
    _check_slurm(request)


def _check_slurm(request: Request) -> None:
    if request.launcher != "slurm":
        if request.slurm:
            raise UsageError("--slurm says what to ask of Slurm; add --launcher slurm")
        if request.remote_python and not request.hosts:
            raise UsageError("--remote-python is for nodes that Rigdyno starts by itself; add --hosts")
        return
    if request.hosts:
        raise UsageError("--hosts are reached over ssh, and Slurm has its own: leave out one of them")
    if request.ranks is None:
        raise UsageError("this machine doesn't tell how many ranks a node of Slurm has room for; add --ranks")
    wrong = [key for key in request.slurm if not _SLURM_KEY.fullmatch(key)]
    if wrong:
        raise BadValue(f"slurm takes options of salloc such as partition or time, not '{wrong[0]}'")


def _counts(request: Request) -> dict[str, int | None]:
    return {name: getattr(request, name) for name in ("repeat", "threads", "steps", "ranks")}


def _require_utf8(request: Request) -> None:
    """A record is UTF-8: what a command line brings as other bytes couldn't be written."""
    for name in ("target", "device", "label"):
        try:
            (getattr(request, name) or "").encode()
        except UnicodeEncodeError:
            raise BadValue(f"the {name} is not UTF-8 text: {getattr(request, name)!r}") from None


def assignments(pairs: Sequence[str], flag: str) -> dict[str, str]:
    """`--set key=value`, given any number of times."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise BadValue(f"{flag} takes key=value, not '{pair}'")
        if key.strip() in found:
            raise BadValue(f"{flag} gives '{key.strip()}' twice")
        found[key.strip()] = value.strip()
    return found


def sweeps(pairs: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    return {
        key: tuple(value.strip() for value in values.split(",") if value.strip())
        for key, values in assignments(pairs, "--sweep").items()
    }


_DURATIONS = {"budget": "budget_seconds", "soak": "soak_seconds"}
_TABLES = ("set", "sweep", "slurm")
_PLAIN = {
    "target": str, "full": bool, "repeat": int, "steps": int, "device": str, "threads": int, "seed": int,
    "ranks": int, "nodes": int, "rendezvous": str, "remote_python": str,
    "label": str, "update": str, "arrangement": str, "launcher": str,
}  # fmt: skip


def from_toml(path: Path) -> Request:
    document = read_toml(path)
    known = (*_PLAIN, *_DURATIONS, *_TABLES)
    for key in document:
        if key not in known:
            raise UnknownName("key of a plan", key, known, where=f"{_at(path, key)}: ")
    if "target" not in document:
        raise BadValue(f'{path}: a plan needs a target, e.g. target = "device"')
    fields = {key: _plain(path, key, document[key]) for key in _PLAIN if key in document}
    fields |= {_DURATIONS[key]: _duration(path, key, document[key]) for key in _DURATIONS if key in document}
    fields |= {"options": _options(path, document.get("set", {})), "sweep": _sweep(path, document.get("sweep", {}))}
    fields["slurm"] = {key: str(value) for key, value in _options(path, document.get("slurm", {}), "slurm").items()}
    fields["places"] = {"": str(path)} | {
        key: _at(path, key, name) for name in ("set", "sweep") for key in document.get(name, {})
    }
    try:
        return Request(**fields)
    except UsageError as error:
        key = str(error).partition(" ")[0]  # such messages begin with the key, where there is one
        raise BadValue(f"{_at(path, key) if key in document else path}: {error}") from None


def _at(path: Path, key: str, table: str = "") -> str:
    line = line_of(path, key, table)
    return f"{path}:{line}" if line else str(path)


def _plain(path: Path, key: str, value: Any) -> Any:
    wanted = _PLAIN[key]
    if type(value) is not wanted:
        words = {str: "text in quotes", bool: "true or false", int: "a whole number"}[wanted]
        raise BadValue(f"{_at(path, key)}: {key} must be {words}, not {value!r}")
    return value


def _duration(path: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadValue(f'{_at(path, key)}: {key} must be a duration such as "5m", not {value!r}')
    try:
        return seconds_from(value)
    except BadValue as error:
        raise BadValue(f"{_at(path, key)}: {key}: {error}") from None


def _options(path: Path, table: Any, name: str = "set") -> dict[str, Value]:
    _require_table(path, name, table)
    for key, value in table.items():
        if not isinstance(value, (bool, int, float, str)):
            raise BadValue(f"{_at(path, key, name)}: {key} must be a number, text, true or false, not {value!r}")
    return dict(table)


def _sweep(path: Path, table: Any) -> dict[str, tuple[Value, ...]]:
    _require_table(path, "sweep", table)
    for key, values in table.items():
        if not isinstance(values, list) or not all(isinstance(value, (bool, int, float, str)) for value in values):
            raise BadValue(f"{_at(path, key, 'sweep')}: {key} must be a list such as [1, 2, 4], not {values!r}")
    return {key: tuple(values) for key, values in table.items()}


def _require_table(path: Path, name: str, table: Any) -> None:
    if not isinstance(table, Mapping):
        raise BadValue(f"{_at(path, name)}: {name} must be a table: [{name}], then key = value")


def overridden(plan: Request, flags: Mapping[str, Any]) -> Request:
    """Flags win over the file; options are merged key by key."""
    given = {key: value for key, value in flags.items() if value is not None and value is not False and value != ""}
    text_keys = (*given.get("options", {}), *given.get("sweep", {}))
    given["slurm"] = {**plan.slurm, **given.get("slurm", {})}
    for table in ("options", "sweep"):
        kept = {key: value for key, value in getattr(plan, table).items() if key not in text_keys}
        given[table] = {**kept, **given.get(table, {})}
    places = {key: place for key, place in plan.places.items() if key not in text_keys}
    return msgspec.structs.replace(plan, **given, text_keys=text_keys, places=places)
