"""What the user asks for: flags, a plan file that says the same, and arguments of Python become a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from rigdyno.errors import BadValue, UnknownName, UsageError
from rigdyno.plan.run_options import ARGUMENTS, PLAN_KEYS, RUN_OPTIONS, RunOption
from rigdyno.plan.values import TEXT, WHOLE
from rigdyno.schema.spec import Value, is_endpoint
from rigdyno.toml import line_of, read_toml

_SLURM_KEY = re.compile(r"[a-z][a-z0-9-]*")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A plan before anything is known about the machine. None: the default of whatever is run."""

    target: str = ""
    options: dict[str, Value] = {}
    sweep: dict[str, tuple[Value, ...]] = {}
    memory_bytes: int | None = None  # that an option set to 'largest' may fill
    budget_seconds: float | None = None
    soak_seconds: float | None = None
    idle_seconds: float | None = None
    steps: int | None = None  # at most, for each process, after warm-up
    full: bool = False
    repeat: int | None = None
    device: str | None = None
    threads: int | None = None
    ranks: int | None = None  # of one node
    cards: tuple[int, ...] = ()  # how many, one after the other
    frameworks: tuple[str, ...] = ()
    beside: str | None = None  # an earlier run
    workload: str | None = None  # of a suite: FILE.py:FUNCTION, a user's own training
    audit: bool = False
    until: float | None = None  # the accuracy to which a suite trains
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
    cheap: bool = False  # one of several suites that share the time
    text_keys: tuple[str, ...] = ()  # options that came as text: '12' may be a number
    places: dict[str, str] = {}  # of options in a plan file: "plan.toml:3", "" where a flag won; the file's under ""

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
        raise UsageError("a soak is as long as it says: give --soak or --budget, not both", key="soak")
    if request.soak_seconds is not None and request.steps is not None:
        raise UsageError("a soak ends with its time: leave out --steps", key="steps")
    if request.soak_seconds is not None and request.full:
        raise UsageError("--soak and --full are two different runs; choose one", key="soak")
    _check_nodes(request)
    _check_slurm(request)


def _require_utf8(name: str, text: str) -> None:
    """A record is UTF-8: what a command line brings as other bytes couldn't be written."""
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
            "--hosts says how many nodes there are, and starts them: leave out --nodes and --node-rank", key="nodes"
        )
    if request.rendezvous and (request.hosts or request.launcher == "slurm"):
        raise UsageError("--rendezvous is for nodes that are started by hand: leave it out", key="rendezvous")
    by_hand = request.nodes > 1 and not request.hosts and request.launcher != "slurm"
    if by_hand and not is_endpoint(request.rendezvous):
        wrong = f"not '{request.rendezvous}'" if request.rendezvous else "with --rendezvous"
        others = "or --hosts, or --launcher slurm"
        raise BadValue(
            f"several nodes need HOST:PORT of the first one, {wrong}; e.g. 10.0.0.1:29500; {others}",
            key="rendezvous" if request.rendezvous else "nodes",
        )


def _check_slurm(request: Request) -> None:
    if request.launcher != "slurm":
        if request.slurm:
            raise UsageError("--slurm says what to ask of Slurm; add --launcher slurm", key="slurm")
        if request.remote_python and not request.hosts:
            wrong = "--remote-python is for nodes that Rigdyno starts by itself; add --hosts"
            raise UsageError(wrong, key="remote_python")
        return
    if request.hosts:
        raise UsageError("--hosts are reached over ssh, and Slurm has its own: leave out one of them", key="hosts")
    if request.ranks is None:
        wrong = "this machine doesn't tell how many ranks a node of Slurm has room for; add --ranks"
        raise UsageError(wrong, key="launcher")
    bad = [key for key in request.slurm if not _SLURM_KEY.fullmatch(key)]
    if bad:
        wrong = f"slurm takes options of salloc such as partition or time, not '{bad[0]}'"
        raise BadValue(wrong, key=f"slurm.{bad[0]}")


def from_flags(flags: Mapping[str, Any]) -> Request:
    """As click gives them, by the options' names; the target may be a plan file, which they win over."""
    given = {name: value for name, value in flags.items() if is_given(value)}
    fields = _fields({option: given[option.name] for option in RUN_OPTIONS if option.name in given}, "flag")
    fields["text_keys"] = (*fields.get("options", {}), *fields.get("sweep", {}))
    return _request(fields)


def from_python(arguments: Mapping[str, Any]) -> Request:
    """The same from arguments of `rigdyno.run` or `rigdyno.duel`, by their names there; others are left alone."""
    given = {name: value for name, value in arguments.items() if is_given(value)}
    return _request(_fields({ARGUMENTS[name]: given[name] for name in ARGUMENTS if name in given}, "python_name"))


def is_given(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, (str, tuple)) and not value)


def _fields(given: Mapping[RunOption, Any], called: Literal["flag", "name", "python_name"]) -> dict[str, Any]:
    """Of a request. `called`: how whoever gave them calls the options."""
    fields: dict[str, Any] = {}
    for option, value in given.items():
        if option.of_request:
            read = option.read(value, getattr(option, called), text=called == "flag")
            before = fields.get(option.request_field, {})
            fields[option.request_field] = {**before, **read} if isinstance(read, dict) else read
    if "hosts" in fields:
        fields.setdefault("nodes", len(fields["hosts"]))
    return fields


def _request(fields: dict[str, Any]) -> Request:
    if not fields.get("target", "").endswith(".toml"):
        return Request(**fields)
    return from_toml(Path(fields.pop("target")), over=fields)


def from_toml(path: Path, over: Mapping[str, Any] | None = None) -> Request:
    """`over`: fields of the request that win over the file, tables key by key."""
    document = {key: _flat(value) if isinstance(value, dict) else value for key, value in read_toml(path).items()}
    lines = {"": str(path), **_lines(path, document)}
    with placed(lines):
        fields = _fields_of_plan(document)
    places = {**lines, **_nowhere(over or {})}
    with placed(places):
        return Request(**_merged(fields, over or {}), places=places)


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """TOML takes `update.delta = 1e-6` for a table in this one, and here it is the option 'update.delta'."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = value if isinstance(value, dict) and value else {}
        flat |= {f"{key}.{name}": each for name, each in inner.items()} or {key: value}
    return flat


def _fields_of_plan(document: Mapping[str, Any]) -> dict[str, Any]:
    for key in document:
        if key not in PLAN_KEYS:
            raise UnknownName("key of a plan", key, PLAN_KEYS, key=key)
    if "target" not in document:
        raise BadValue('a plan needs a target, e.g. target = "device"')
    return _fields({PLAN_KEYS[key]: value for key, value in document.items()}, "name")


def _lines(path: Path, document: Mapping[str, Any]) -> dict[str, str]:
    keys = [("", key) for key in document]
    keys += [(table, key) for table, value in document.items() if isinstance(value, Mapping) for key in value]
    found = {f"{table}.{key}" if table else key: line_of(path, key, table) for table, key in keys}
    return {key: f"{path}:{line}" for key, line in found.items() if line is not None}


def _nowhere(over: Mapping[str, Any]) -> dict[str, str]:
    """What doesn't come from the file, even if it stands there too, has no place in it."""
    keys = [option.name for option in RUN_OPTIONS if option.request_field in over]
    own = (*over.get("options", ()), *over.get("sweep", ()))
    keys += [f"{table}.{key}" for table in ("set", "sweep") for key in own]
    keys += [f"slurm.{key}" for key in over.get("slurm", ())]
    return dict.fromkeys(keys, "")


def _merged(plan: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**plan, **over}
    own = {*over.get("options", ()), *over.get("sweep", ())}  # set in one and swept in the other, the file gives way
    for table in ("options", "sweep"):
        kept = {key: value for key, value in plan.get(table, {}).items() if key not in own}
        merged[table] = {**kept, **over.get(table, {})}
    merged["slurm"] = {**plan.get("slurm", {}), **over.get("slurm", {})}
    return merged


@contextmanager
def placed(places: Mapping[str, str]) -> Iterator[None]:
    """Says where in a plan file it stands, if something in it is wrong."""
    try:
        yield
    except UsageError as error:
        place = _place(error.key, places)
        if not place:
            raise
        raise BadValue(f"{place}: {error}", key=error.key) from None


def _place(key: str | None, places: Mapping[str, str]) -> str:
    """Of what an error is about; else the file itself, if there is one."""
    file = places.get("", "")
    if key is None:
        return file
    table, _, name = key.partition(".")
    swept = f"sweep.{name}" if table == "set" else key  # a workload knows its options, not who set or swept them
    return places.get(key, places.get(swept, file))
