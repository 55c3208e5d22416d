"""Test energy in all outputs of a run: tables, `show`, comparisons, the leaderboard and exports."""

import csv
import io
import json
import struct

import pytest
from click.testing import CliRunner

from rigdyno import api
from rigdyno.cli import rigdyno
from rigdyno.report.exports import bencher, github_action_benchmark
from rigdyno.report.show import describe_run_in_full
from rigdyno.report.text import Page
from rigdyno.schema.channel import Channel
from rigdyno.schema.samples import RowFile, telemetry_header
from rigdyno.schema.spec import Cell, RunPlan, RunSpec, sampler_of
from rigdyno.store.folder import RunFolder
from stored_runs import ADDING, add_cell, stored_run
from support import rows_path

PLUG = Channel("plug_w", "W", "power", device="wall", rail="plug", scope="wall", extent="whole", sensor="external")
STATE = Channel("external_probe_state", "code", "state", sensor="external")
USAGE = Channel("cpu0", "share", "utilisation", device="cpu0", sensor="host")
BEGIN_NS = 1_000_000_000  # start of write_steps


def add_telemetry(cell_folder, watts, seconds=12.0, states=()):
    """Add two readings per second; without `watts` there is no power meter."""
    channels = (USAGE,) if watts is None else (USAGE, PLUG, STATE)
    absent = {"rapl": "a virtual machine has no energy counter; measure on its host"} if watts is None else {}
    file = RowFile(rows_path(cell_folder, "telemetry", "node0"), telemetry_header(channels, sampler_of(0), absent))
    for tick in range(round(seconds * 2)):
        at_ns = BEGIN_NS - 500_000_000 + tick * 500_000_000
        values = (0.5,) if watts is None else (0.5, watts, states[tick] if tick < len(states) else 0.0)
        file.append(struct.pack(f"<q{len(values)}d", at_ns, *values))
    file.close()


def metered_run(root, name="metered", step_ms=(100.0, 101.0, 102.0), watts=(40.0, 41.0, 42.0), **changes):
    path = stored_run(root, name, step_ms, **changes)
    for number, each in enumerate(watts, start=1):
        add_telemetry(path / "cells" / f"{number:02d}-cell", each)
    return path


def find_table(view, word):
    return next(table for table in view.tables if word in table.title)


def command(*arguments):
    done = CliRunner().invoke(rigdyno, [str(each) for each in arguments], catch_exceptions=False, standalone_mode=False)
    return done.output


def test_energy_has_a_table_and_a_column_next_to_the_rates(tmp_path):
    view = api.load(metered_run(tmp_path)).view()
    table = find_table(view, "Energy over the steady steps, by plug (external)")
    (row,) = table.rows
    assert row.entries["energy"].value == pytest.approx(41 / (1 / 0.101), rel=0.001)  # about 4.1 J/it
    assert row.entries["energy"].unit == "J/it"
    assert row.entries["energy"].low < row.entries["energy"].value < row.entries["energy"].high
    assert row.entries["power"].value == pytest.approx(41, rel=0.001)
    assert row.entries["covered"].value == pytest.approx(1.0)
    assert "idle" in row.entries["net_energy"].reason
    assert "energy" in [column.key for column in view.tables[0].columns]


def test_energy_net_of_idle_is_shown_if_idle_was_measured(tmp_path):
    path = metered_run(tmp_path)
    folder = RunFolder(path)
    idle = Cell(name="00-idle", spec=RunSpec(workload="idle"))
    add_cell(folder, idle, 50.0)
    add_telemetry(path / "cells/00-idle", 11.0)
    (row,) = find_table(api.load(path).view(), "Energy").rows
    assert row.entries["net_energy"].value == pytest.approx(30 * 0.101, rel=0.01)
    assert find_table(api.load(path).view(), "Energy").notes == (
        "net of idle: without the 11.0 W that the idle machine draws",
    )
    assert [each.spec.workload for each in api.load(path).measurements] == ["tensor_add"]


def test_without_a_meter_one_sentence_says_how_to_add_one(tmp_path):
    view = api.load(metered_run(tmp_path, watts=(None, None, None))).view()
    said = [text for text in view.closing if "No joules" in text]
    assert said == [
        "No joules: no meter of power or energy could be read (rapl: a virtual machine has no energy counter; "
        "measure on its host). `rigdyno doctor` says what would add a meter."
    ]
    assert all("energy" not in [column.key for column in table.columns] for table in view.tables)


@pytest.mark.parametrize("suite", ["device", "quick"])
def test_a_suite_shows_energy_table_and_column(tmp_path, suite):
    plan = RunPlan(
        name="x", suite=suite, cells=tuple(Cell(name=f"0{n}-cell", spec=ADDING, repeat=n) for n in (1, 2, 3))
    )
    view = api.load(metered_run(tmp_path, plan=plan, suite=suite)).view()
    assert find_table(view, "Energy over")
    assert "energy" in [column.key for column in find_table(view, "Tensor add").columns]


def test_show_names_each_meter_and_failing_probes(tmp_path):
    path = stored_run(tmp_path, "troubled", [100.0])
    add_telemetry(path / "cells/01-cell", 40.0, states=[0, 1, 1, 3])
    run = api.load(path)
    text = " ".join(describe_run_in_full(run.head, run.cells, run.view(), Page()).split())
    assert "plug (external): " in text
    assert "integrated over" in text
    assert "external blocked in 2 of 24 readings; external nonsense in 1 of 24 readings" in text


def test_csv_and_json_contain_energy(tmp_path):
    path = metered_run(tmp_path)
    rows = list(csv.reader(io.StringIO(command("report", path, "--format", "csv"))))
    assert any("J/it" in cell for row in rows for cell in row)
    document = json.loads(command("report", path, "--format", "json"))
    energy = next(table for table in document["tables"] if table["title"].startswith("Energy"))
    assert energy["rows"][0]["entries"]["power"]["value"] == pytest.approx(41, rel=0.001)


def test_two_runs_are_compared_by_energy(tmp_path):
    one = metered_run(tmp_path, "one")
    two = metered_run(tmp_path, "two", watts=(30.0, 31.0, 30.5))
    document = json.loads(command("compare", one, two, "--json"))
    by_name = {each["what"]: each for each in document["comparisons"]}
    energy = by_name["tensor_add variant=as_published, energy"]
    assert energy["answer"] == "less"
    assert "less energy" in energy["sentence"]
    assert energy["metric"]["unit"] == "J/it"


def test_runs_whose_meters_cover_different_parts_are_not_compared(tmp_path):
    from msgspec.structs import replace

    from rigdyno.features.duel.compare import Sides, compare

    one = api.load(metered_run(tmp_path, "one")).measurements
    two = [replace(each, energy=replace(each.energy, whole="chips", source="gpu0 (nvml)")) for each in one]
    found = compare(one, two, Sides("one", "two"))
    assert [each.answer for each in found if each.what.endswith("energy")] == ["NOT_COMPARABLE"]
    assert "don't measure the same part" in found[-1].sentence


def test_the_leaderboard_has_an_energy_column_if_a_run_has_a_meter(tmp_path):
    assert "energy" not in command("leaderboard", "device", "--out", tmp_path)
    metered_run(tmp_path, label="my machine")
    text = command("leaderboard", "device", "--out", tmp_path, "--format", "csv")
    assert "my machine" in text
    assert "energy" in text


def test_exports_contain_energy(tmp_path):
    figures = api.load(metered_run(tmp_path)).measurements
    (measures,) = bencher.document(figures).values()
    assert measures["energy"]["value"] == pytest.approx(4.14, rel=0.01)
    by_name = {each["name"]: each for each in github_action_benchmark.document(figures)}
    per_joule = by_name["tensor_add variant=as_published, items per joule"]
    assert per_joule["value"] == pytest.approx(1 / measures["energy"]["value"])
    assert per_joule["unit"] == "it/J"
