"""Run folders that were truncated, flipped or emptied: a view or a RigdynoError comes out, and nothing else."""

import struct
import tempfile
import warnings
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno import api, catalogue
from rigdyno.base.errors import RigdynoError
from rigdyno.commands.common.page import Material, page_text
from rigdyno.report.show import describe_run_in_full
from rigdyno.report.text import Page
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import STEP_FIELDS, Header, RowFile, telemetry_header
from rigdyno.schema.spec import Budget, RunSpec, sampler_of
from rigdyno.schema.view import View
from support import a_rank, a_stored_run, rows_path

CHANNELS = ("frequency_mhz", "run_queue_wait_share", "steal_share", "cpu0", "worker_cpu_share", "temperature_c")
METERS = (
    Channel("rail_VDD_IN_w", "W", "power", device="board", rail="VDD_IN", scope="board", extent="whole"),
    Channel("package0_energy_joules", "J", "energy", "counter", "package0", "", "package", "whole", 0.001, "rapl"),
)
SPECS = {
    None: RunSpec(workload="mnist_cnn", options={"batch_size": 8}),
    "device": RunSpec(workload="tensor_add", options={"variant": "as_published", "size": 12288}),
    "quick": RunSpec(workload="memory_bandwidth"),
    "soak": RunSpec(workload="tensor_add", budget=Budget(seconds=3.0, stop="clock")),
}
pytestmark = pytest.mark.usefixtures("without_drawing")
fuzzed = settings(max_examples=25, deadline=None, derandomize=True)


def write_telemetry(path):
    file = RowFile(path, telemetry_header([*(Channel(name, "x") for name in CHANNELS), *METERS], sampler_of(0)))
    for tick in range(40):
        values = 2000.0, 0, 0, 0.9, 0.8, 50, 12.5, 1.2 * tick
        file.append(struct.pack("<q8d", 900_000_000 + tick * 100_000_000, *values))
    file.close()


def stored_files(name):
    with tempfile.TemporaryDirectory() as root:
        run = a_stored_run(Path(root), suite="device" if name == "soak" else name, spec=SPECS[name])
        write_telemetry(rows_path(run / "cells" / "01-test", "telemetry", "node0"))
        return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


STORED = {name: stored_files(name) for name in SPECS}
FILES = sorted(STORED[None])
JSON_FILES = [name for name in FILES if name.endswith(".json")]
ROW_FILES = [name for name in FILES if name.endswith(".rows")]


def look_at(files):
    """Everything that reads a run; its view must survive its own JSON, too."""
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's complaints are crashes that were missed
        run = Path(root) / "run"
        for name, content in files.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(content)
        try:
            loaded = api.load(run)
            view = loaded.view()
        except RigdynoError:
            return
        for form in catalogue.names("format"):
            text = catalogue.load("format", form)(view, Page())
            if form == "json":
                assert msgspec.json.decode(text, type=View) == view
        assert describe_run_in_full(loaded.head, loaded.cells, view, Page())
        assert page_text([Material((loaded,))])


def test_the_untouched_folders_give_figures():
    for name in SPECS:
        look_at(STORED[name])


@pytest.mark.parametrize("name", SPECS)
@fuzzed
@given(data=st.data())
def test_changed_or_lost_bytes_are_handled(name, data):
    files = dict(STORED[name])
    for _ in range(data.draw(st.integers(1, 3))):
        target = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(files[target])
        how = data.draw(st.sampled_from(("truncate", "flip", "delete", "garbage", "insert")))
        if how == "delete":
            del files[target]
            if not files:
                return
            continue
        if how == "truncate":
            del content[data.draw(st.integers(0, len(content))) :]
        elif how == "garbage":
            content = bytearray(data.draw(st.binary(max_size=200)))
        elif how == "insert":
            at = data.draw(st.integers(0, len(content)))
            content[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        elif content:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        files[target] = bytes(content)
    look_at(files)


def places(document, path=()):
    yield path
    if isinstance(document, (dict, list)):
        for key, child in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(child, (*path, key))


def with_value(document, path, value):
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = with_value(document[path[0]], path[1:], value)
    return changed


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**63, 10**400, 1e308, 5e-324, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["device", "clock", "tensor_add", "launch_latency", "launch", "byte", "../..", "completed"]),
    st.just({}),
    st.just([]),
)


@pytest.mark.parametrize("name", SPECS)
@fuzzed
@given(data=st.data())
def test_other_values_in_well_formed_json_are_handled(name, data):
    files = dict(STORED[name])
    target = data.draw(st.sampled_from(JSON_FILES))
    document = msgspec.json.decode(files[target])
    path = data.draw(st.sampled_from(list(places(document))))
    files[target] = msgspec.json.encode(with_value(document, path, data.draw(values)))
    look_at(files)


RECORD = "cells/01-test/record.json"
ONCE_CRASHED = [
    (RECORD, ("spec", "options", "size"), "big"),
    (RECORD, ("facts", "per_item", "byte"), 1e308),
    (RECORD, ("peak_memory_bytes",), 10**310),
    ("head.json", ("system", "memory_bytes"), 10**310),
    ("head.json", ("plan", "cells"), []),
]


@pytest.mark.parametrize(("target", "path", "value"), ONCE_CRASHED)
def test_values_that_once_crashed_the_report_are_handled(target, path, value):
    document = msgspec.json.decode(STORED["device"][target])
    look_at({**STORED["device"], target: msgspec.json.encode(with_value(document, path, value))})


numbers = st.one_of(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
step_row = st.tuples(
    numbers, numbers, st.floats() | st.floats(0, 10), st.integers(0, 2**32 - 1), st.integers(0, 2), st.integers(0, 3)
)
good_row = st.tuples(
    st.just(0), st.integers(1, 10**10), st.sampled_from([0.0, 0.0, 1.0, 1e9]), st.just(1), st.just(0), st.just(0)
)


def end_to_end(rows):
    """Rows whose second number is how long they last."""
    at = 10**9
    for _, duration, *rest in rows:
        yield (at, at + duration, *rest)
        at += duration


@pytest.mark.parametrize("name", SPECS)
@fuzzed
@given(rows=st.lists(step_row, max_size=6) | st.lists(good_row, max_size=90).map(lambda rows: list(end_to_end(rows))))
def test_other_rows_after_a_valid_header_are_handled(name, rows):
    header = msgspec.json.encode(Header(fields=STEP_FIELDS, kinds=("step", "other"), participant=a_rank())) + b"\n"
    body = b"".join(struct.pack("<qqdIHH", *row) for row in rows)
    look_at({**STORED[name], "cells/01-test/rank0/steps.rows": header + body})


@pytest.mark.parametrize("target", ROW_FILES)
@fuzzed
@given(data=st.data())
def test_other_headers_before_the_same_rows_are_handled(target, data):
    forms = st.sampled_from(["<i8", "<f8", "<u4", "<u2", "|O", "O", "3<i8", "V0", "S3", "<M8[s]", ">i8", "", "\0"])
    names = st.sampled_from(["start_ns", "end_ns", "items", "steps", "kind", "flags", "at_ns", "steal_share", "", "\0"])
    header = {
        "fields": data.draw(st.lists(st.tuples(names, forms), max_size=8)),
        "kinds": data.draw(st.lists(st.sampled_from(["step", "other"]), max_size=3)),
        "format": data.draw(st.sampled_from([1, 2, 2, 3])),
        "rank": data.draw(st.integers()),
        "participant": {
            "id": data.draw(st.sampled_from(["rank0", "node0", "rank1", "../x", ""])),
            "rank": data.draw(st.none() | st.integers()),
            "node": data.draw(st.integers()),
        },
    }
    body = STORED["device"][target].partition(b"\n")[2]
    look_at({**STORED["device"], target: msgspec.json.encode(header) + b"\n" + body})
