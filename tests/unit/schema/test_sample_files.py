"""Test row files: written and read back, truncated, and hostile."""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.base.errors import DamagedRun, NewerStore
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import FORMAT, STEP_FIELDS, STEP_STRUCT, Header, RowFile, read_rows, telemetry_header
from rigdyno.schema.spec import sampler_of
from support import a_rank, write_steps

fuzzed = settings(max_examples=100, deadline=None, derandomize=True)


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "steps.0.rows"
    file = RowFile(path, Header(fields=STEP_FIELDS, kinds=("read", "write"), participant=a_rank(3)))
    file.append(struct.pack(STEP_STRUCT, 5, 9, 2.5, 7, 1, 1))
    file.append(memoryview(struct.pack(STEP_STRUCT, 9, 14, 0.5, 1, 0, 0)))
    file.close()
    file.close()
    header, rows = read_rows(path)
    assert header == Header(fields=STEP_FIELDS, kinds=("read", "write"), participant=a_rank(3))
    assert rows.tolist() == [(5, 9, 2.5, 7, 1, 1), (9, 14, 0.5, 1, 0, 0)]


def test_telemetry_comes_back(tmp_path):
    path = tmp_path / "telemetry.rows"
    file = RowFile(path, telemetry_header([Channel("watts", "W")], sampler_of(0)))
    file.append(struct.pack("<qd", 12, 3.5))
    header, rows = read_rows(path)  # still open: what was appended is there
    file.close()
    assert rows["watts"].tolist() == [3.5]
    assert header.channels == (Channel("watts", "W"),)


def test_a_second_writer_is_refused(tmp_path):
    write_steps(tmp_path / "rows", [1])
    with pytest.raises(FileExistsError):
        RowFile(tmp_path / "rows", Header(fields=STEP_FIELDS, participant=a_rank()))


@pytest.mark.parametrize("lost", range(1, 33))
def test_a_torn_last_row_is_left_out(tmp_path, lost):
    path = tmp_path / "rows"
    write_steps(path, [10, 20, 30])
    path.write_bytes(path.read_bytes()[:-lost])
    assert [end - start for start, end, *_ in read_rows(path)[1].tolist()] == [10, 20]


def test_a_truncated_header_is_damage(tmp_path):
    path = tmp_path / "rows"
    write_steps(path, [10])
    content = path.read_bytes()
    for length in range(content.index(b"\n") + 1):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedRun, match="ends inside its header"):
            read_rows(path)


@pytest.mark.parametrize(
    "fields",
    [[], [["a", "O"]], [["a", "|O8"]], [["a", "V0"]], [["a", "V2147483647"]], [["a", "3<i8"]], [["a", ">i8"]],
     [["a", "<i8"], ["a", "<f8"]], [["a", "no"]], [["a"]], [["a", 8]], "<i8", None, [["\x00", "<M8[s]"]]],
)  # fmt: skip
def test_hostile_fields_are_damage(tmp_path, fields):
    path = tmp_path / "rows"
    path.write_bytes(msgspec.json.encode({"fields": fields}) + b"\n" + b"\0" * 64)
    with pytest.raises(DamagedRun, match="rows"):
        read_rows(path)


def test_a_path_that_is_not_a_file_is_damage(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DamagedRun, match="can't read"):
            read_rows(path)


def test_deep_nesting_is_damage_and_not_a_crash(tmp_path):
    (tmp_path / "rows").write_bytes(b'{"other":' + b"[" * 100_000 + b"\n")
    with pytest.raises(DamagedRun):
        read_rows(tmp_path / "rows")


forms = st.sampled_from(["<i8", "<f8", "<u4", "<u2", "O", "V0", "S9", "i8,i8", "<c16"]) | st.text(max_size=6)
headers = st.fixed_dictionaries(
    {"fields": st.lists(st.tuples(st.text(max_size=4), forms), max_size=5)},
    optional={"kinds": st.lists(st.text(max_size=3), max_size=2), "rank": st.integers(), "format": st.integers()},
)


files = st.builds(lambda header, body: msgspec.json.encode(header) + b"\n" + body, headers, st.binary())


@fuzzed
@given(content=st.binary(max_size=300) | files)
def test_any_bytes_give_rows_or_damage(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("rows") / "rows"
    path.write_bytes(content)
    try:
        header, rows = read_rows(path)
    except (DamagedRun, NewerStore):
        return
    assert rows.dtype.names is not None
    assert len(rows.dtype.names) == len(header.fields)
    assert len(rows.tolist()) == len(content.partition(b"\n")[2]) // rows.dtype.itemsize


def test_rows_of_a_newer_format_are_refused(tmp_path):
    path = tmp_path / "steps.0.rows"
    path.write_bytes(msgspec.json.encode(Header(format=FORMAT + 1, fields=STEP_FIELDS, participant=a_rank())) + b"\n")
    with pytest.raises(NewerStore, match="upgrade"):
        read_rows(path)


def written(path, header, *values):
    path.write_bytes(msgspec.json.encode(header) + b"\n" + struct.pack(f"<q{len(values)}d", 7, *values))
    return read_rows(path)


def test_channels_of_format_2_mean_what_their_names_say(tmp_path):
    old = {"format": 2, "participant": {"id": "node0", "role": "sampler"}}
    names = {"cpu0": "share", "gpu1_power_w": "W", "gpu1_energy_joules": "J", "package0_energy_joules": "J", "x": "1"}
    fields = [["at_ns", "<i8"], *([name, "<f8"] for name in names)]
    header, rows = written(tmp_path / "rows", {**old, "fields": fields, "units": list(names.values())}, 1, 2, 3, 4, 5)
    by_name = {channel.name: channel for channel in header.channels}
    assert list(by_name) == list(names)
    assert rows["gpu1_power_w"].tolist() == [2.0]
    assert by_name["cpu0"].quantity == "utilisation"
    assert by_name["gpu1_power_w"].meter == by_name["gpu1_energy_joules"].meter == ("card", "gpu1", "")
    assert (by_name["package0_energy_joules"].kind, by_name["package0_energy_joules"].scope) == ("counter", "package")
    assert by_name["x"] == Channel("x", "1", sensor="host")
    assert header.participant.role == "sampler"


def test_channels_that_do_not_match_the_columns_are_damage(tmp_path):
    header = {"format": 3, "fields": [["at_ns", "<i8"], ["a", "<f8"]], "participant": {"id": "node0"}}
    with pytest.raises(DamagedRun, match="match its columns"):
        written(tmp_path / "rows", {**header, "channels": [{"name": "b", "unit": "W"}]}, 1.0)
