"""The tables of an exported database, each with what its rows and columns are."""

from __future__ import annotations

_STEP = """(
  participant_id integer not null references participants(id),
  kind text not null, start_ns integer not null, end_ns integer not null,
  items real not null, steps integer not null, warm_up integer not null, clock_jumped integer not null
)"""

SCRIPT = f"""
create table about (name text primary key, description text not null);
create table runs (
  name text primary key, suite text, label text, created_at text, rigdyno_version text, cpu text, rig text
);
create table cells (
  id integer primary key, run text not null references runs(name), name text not null, key text not null,
  workload text not null, options text not null, update_name text, arrangement text, launcher text,
  world_size integer, nodes integer, device text, threads integer, repeat integer, pair integer, arm text,
  attempt_of text, outcome text not null, reason text, started_at text, seconds real, peak_memory_bytes integer
);
create table participants (
  id integer primary key, cell_id integer not null references cells(id), name text not null, role text not null,
  rank integer, node integer, device text, clock text
);
create table steps {_STEP};
create table phases {_STEP};
create table channels (
  id integer primary key, participant_id integer not null references participants(id), name text not null, unit text
);
create table telemetry (channel_id integer not null references channels(id), at_ns integer not null, value real);
create table figures (
  run text not null references runs(name), key text not null, what text not null, kind text not null,
  metric text not null, better text, unit text, value real, low real, high real, confidence real, n integer,
  method text, verdict text
);
create table reasons (
  run text not null references runs(name), key text not null, what text not null, verdict text, code text,
  sentence text
);
"""

DESCRIBED = (
    ("about", "What each table holds."),
    ("runs", "A row a run: its suite, what the rig is called, when and by which version it was made."),
    ("cells", "A row a process group that was measured, skipped or failed; key is the same for repeats of a "
              "configuration; options is JSON, defaults included; attempt_of names the cell of a search."),
    ("participants", "Who took part in a cell: ranks that step, samplers that read meters; times of two can be "
                     "held against each other only if both are by the same clock."),
    ("steps", "Every step, warm-up included; a row with steps above 1 is a block of short ones; ns are by the "
              "participant's own clock."),
    ("phases", "What steps were spent on, where that was timed: kind is the phase."),
    ("channels", "What a sampler read, and in which unit."),
    ("telemetry", "A row a reading; no value where the meter gave none."),
    ("figures", "What the steps come to: value with interval, n and method, and the verdict."),
    ("reasons", "Why a verdict isn't VALID."),
)  # fmt: skip
