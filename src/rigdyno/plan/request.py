"""Read a request from command-line flags, from a plan file or from Python arguments, and check it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UnknownName, UsageError
from rigdyno.base.toml import find_line, read_toml
from rigdyno.contracts import Finds
from rigdyno.plan.run_options import ARGUMENTS, PLAN_KEYS, RUN_OPTIONS, RunOption
from rigdyno.plan.values import TEXT, WHOLE
from rigdyno.schema.spec import Value, is_endpoint

# The value of an option. Some options of suites take a list.
Setting = Value | tuple[Value, ...]

_SLURM_KEY = re.compile(r"[a-z][a-z0-9-]*")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A user's request, independent of the machine. None: the default of the target."""

    target: str = ""
    options: dict[str, Setting] = {}  # options of the suite or workload
    sweep: dict[str, tuple[Value, ...]] = {}
    memory_bytes: int | None = None  # memory limit of an option set to 'largest'
    budget_seconds: float | None = None
    soak_seconds: float | None = None
    idle_seconds: float | None = None
    steps: int | None = None  # maximum for each process, after warm-up
    full: bool = False
    repeat: int | None = None
    device: str | None = None
    threads: int | None = None
    ranks: int | None = None  # on each node
    nodes: int = 1
    node_rank: int = 0  # number of this node
    rendezvous: str = ""  # HOST:PORT of node 0
    hosts: tuple[str, ...] = ()  # nodes that Rigdyno starts over ssh; the first is this machine
    remote_python: str | None = None  # the interpreter on the other nodes
    slurm: dict[str, str] = {}  # options of salloc
    seed: int = 0
    label: str | None = None
    update: str = "plain"
    arrangement: str | None = None  # None: the workload's default
    launcher: str | None = None
    python: str | None = None  # the interpreter of another environment
    cheap: bool = False  # one of several suites that share a budget
    text_keys: tuple[str, ...] = ()  # options given as text, where '12' may be a number
    # Where each option is in a plan file, e.g. "plan.toml:3"; "" if a flag overrode it. The key "" is the file itself.
    places: dict[str, str] = {}

    def __post_init__(self) -> None:
        _check(self)


def _check(request: Request) -> None:
    for option in RUN_OPTIONS:
        value = getattr(request, option.request_field) if option.of_request else None
        if option.kind is WHOLE and value is not None:
            option.require_range(value)
        if option.kind is TEXT:
            _require_utf8(option.name, value or "")
    _check_tables(request)
    if request.soak_seconds is not None and request.budget_seconds is not None:
        raise UsageError("--soak sets the length of the run: give --soak or --budget, not both", key="soak")
    if request.soak_seconds is not None and request.steps is not None:
        raise UsageError("a soak ends when its time is up: leave out --steps", key="steps")
    if request.soak_seconds is not None and request.full:
        raise UsageError("--soak and --full are two different runs; choose one", key="soak")
    _check_nodes(request)
    _check_slurm(request)


def _require_utf8(name: str, text: str) -> None:
    """Refuse text with bytes that are not UTF-8, which a command line can contain and a record can't store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadValue(f"the {name} is not UTF-8 text: {text!r}", key=name) from None


def _check_tables(request: Request) -> None:
    twice = sorted(set(request.options) & set(request.sweep))
    if twice:
        raise UsageError(f"'{twice[0]}' is both set and swept; choose one", key=f"sweep.{twice[0]}")
    empty = [key for key, values in request.sweep.items() if not values]
    if empty:
        raise BadValue(f"the sweep over '{empty[0]}' has no value", key=f"sweep.{empty[0]}")


def _check_nodes(request: Request) -> None:
    if request.nodes == 1 and (request.node_rank or request.rendezvous):
        key = "rendezvous" if request.rendezvous else "node_rank"
        raise UsageError("--node-rank and --rendezvous are for several nodes; add --nodes", key=key)
    if not 0 <= request.node_rank < request.nodes:
        between = f"between 0 and {request.nodes - 1} with {request.nodes} nodes"
        raise BadValue(f"node_rank must be {between}, not {request.node_rank}", key="node_rank")
    if request.hosts and (len(request.hosts) != request.nodes or request.node_rank):
        raise UsageError(
            "--hosts sets the number of nodes and starts them: leave out --nodes and --node-rank", key="nodes"
        )
    allocated = _finds_nodes_by(request.launcher) == "allocation"
    if request.rendezvous and (request.hosts or allocated):
        raise UsageError("--rendezvous is for nodes that are started by hand: leave it out", key="rendezvous")
    by_hand = request.nodes > 1 and not request.hosts and not allocated
    if by_hand and not is_endpoint(request.rendezvous):
        wrong = f"not '{request.rendezvous}'" if request.rendezvous else "with --rendezvous"
        others = "or --hosts, or --launcher slurm"
        raise BadValue(
            f"several nodes need HOST:PORT of node 0, {wrong}; e.g. 10.0.0.1:29500; {others}",
            key="rendezvous" if request.rendezvous else "nodes",
        )


def _finds_nodes_by(launcher: str | None) -> Finds | None:
    """Return how a launcher finds other nodes; None for an unknown launcher, which is refused later."""
    if launcher is None or launcher not in catalogue.names("launcher"):
        return None
    found: Finds | None = catalogue.load("launcher", launcher).finds_nodes_by
    return found


def _check_slurm(request: Request) -> None:
    if _finds_nodes_by(request.launcher) != "allocation":
        if request.slurm:
            raise UsageError("--slurm sets options of Slurm; add --launcher slurm", key="slurm")
        if request.remote_python and not request.hosts:
            wrong = "--remote-python is for nodes that Rigdyno starts by itself; add --hosts"
            raise UsageError(wrong, key="remote_python")
        return
    if request.hosts:
        raise UsageError("--hosts are reached over ssh, and Slurm has its own: leave out one of them", key="hosts")
    if request.ranks is None:
        wrong = "the number of ranks that fit on a Slurm node is unknown here; add --ranks"
        raise UsageError(wrong, key="launcher")
    bad = [key for key in request.slurm if not _SLURM_KEY.fullmatch(key)]
    if bad:
        wrong = f"slurm takes options of salloc such as partition or time, not '{bad[0]}'"
        raise BadValue(wrong, key=f"slurm.{bad[0]}")


def from_flags(flags: Mapping[str, Any]) -> Request:
    """Make a request of click's flags, by option name. If the target is a plan file, flags override it."""
    given = {name: value for name, value in flags.items() if is_given(value)}
    fields = _read_fields({option: given[option.name] for option in RUN_OPTIONS if option.name in given}, "flag")
    fields["text_keys"] = (*fields.get("options", {}), *fields.get("sweep", {}))
    return _make_request(fields)


def from_python(arguments: Mapping[str, Any]) -> Request:
    """Make a request of the arguments of `rigdyno.run` or `rigdyno.duel`. Arguments that are no options are ignored."""
    given = {name: value for name, value in arguments.items() if is_given(value)}
    return _make_request(
        _read_fields({ARGUMENTS[name]: given[name] for name in ARGUMENTS if name in given}, "python_name")
    )


def is_given(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, (str, tuple)) and not value)


def _read_fields(given: Mapping[RunOption, Any], called: Literal["flag", "name", "python_name"]) -> dict[str, Any]:
    """Read option values into fields of a request. `called`: which name of an option error messages use."""
    fields: dict[str, Any] = {}
    for option, value in given.items():
        if option.of_request:
            read = option.read(value, getattr(option, called), text=called == "flag")
            before = fields.get(option.request_field, {})
            fields[option.request_field] = {**before, **read} if isinstance(read, dict) else read
    if "hosts" in fields:
        fields.setdefault("nodes", len(fields["hosts"]))
    return fields


def _make_request(fields: dict[str, Any]) -> Request:
    if not fields.get("target", "").endswith(".toml"):
        return Request(**fields)
    return from_toml(Path(fields.pop("target")), over=fields)


def from_toml(path: Path, over: Mapping[str, Any] | None = None) -> Request:
    """Make a request of a plan file. `over`: fields that override it; tables are merged key by key."""
    document = {key: _flatten(value) if isinstance(value, dict) else value for key, value in read_toml(path).items()}
    lines = {"": str(path), **_find_lines(path, document)}
    with locate_errors(lines):
        fields = _read_plan_fields(document)
    places = {**lines, **_blank_places(over or {})}
    with locate_errors(places):
        return Request(**_merge(fields, over or {}), places=places)


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested tables: TOML reads `update.delta = 1e-6` as a table, but it is the option 'update.delta'."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = value if isinstance(value, dict) and value else {}
        flat |= {f"{key}.{name}": each for name, each in inner.items()} or {key: value}
    return flat


def _read_plan_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    for key in document:
        if key not in PLAN_KEYS:
            raise UnknownName("key of a plan", key, PLAN_KEYS, key=key)
    if "target" not in document:
        raise BadValue('a plan needs a target, e.g. target = "device"')
    return _read_fields({PLAN_KEYS[key]: value for key, value in document.items()}, "name")


def _find_lines(path: Path, document: Mapping[str, Any]) -> dict[str, str]:
    keys = [("", key) for key in document]
    keys += [(table, key) for table, value in document.items() if isinstance(value, Mapping) for key in value]
    found = {f"{table}.{key}" if table else key: find_line(path, key, table) for table, key in keys}
    return {key: f"{path}:{line}" for key, line in found.items() if line is not None}


def _blank_places(over: Mapping[str, Any]) -> dict[str, str]:
    """Return an empty place for every overridden option: an error in it is not the file's, even if the file has it."""
    keys = [option.name for option in RUN_OPTIONS if option.request_field in over]
    own = (*over.get("options", ()), *over.get("sweep", ()))
    keys += [f"{table}.{key}" for table in ("set", "sweep") for key in own]
    keys += [f"slurm.{key}" for key in over.get("slurm", ())]
    return dict.fromkeys(keys, "")


def _merge(plan: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**plan, **over}
    # An option that is set in one and swept in the other is taken from `over`.
    own = {*over.get("options", ()), *over.get("sweep", ())}
    for table in ("options", "sweep"):
        kept = {key: value for key, value in plan.get(table, {}).items() if key not in own}
        merged[table] = {**kept, **over.get(table, {})}
    merged["slurm"] = {**plan.get("slurm", {}), **over.get("slurm", {})}
    return merged


@contextmanager
def locate_errors(places: Mapping[str, str]) -> Iterator[None]:
    """Prefix errors raised inside the block with the file and line of the option they are about."""
    try:
        yield
    except UsageError as error:
        place = _find_place(error.key, places)
        if not place:
            raise
        raise BadValue(f"{place}: {error}", key=error.key) from None


def _find_place(key: str | None, places: Mapping[str, str]) -> str:
    """Return the place of the option that an error is about; else the plan file, if there is one."""
    file = places.get("", "")
    if key is None:
        return file
    table, _, name = key.partition(".")
    swept = f"sweep.{name}" if table == "set" else key  # errors say 'set', though the option may be swept
    return places.get(key, places.get(swept, file))
