"""Ranks on several nodes, each judged by what its own node's sampler read, by that node's own clock."""

from __future__ import annotations

import numpy as np
import pytest

from rigdyno.analyse.measurements import measurements
from rigdyno.analyse.process import CellData
from rigdyno.schema.spec import RunSpec, assign_participants
from scripted_rows import NS, noisy, step_header, step_rows, telemetry_header, telemetry_rows
from support import a_record

HOUR_NS = 3600 * NS
QUIET = {"run_queue_wait_share": 0.0, "cpu0": 0.9, "cpu1": 0.0, "worker_cpu_share": 0.9, "steal_share": 0.0}
BUSY = {**QUIET, "run_queue_wait_share": 0.9, "cpu0": 1.0, "cpu1": 1.0}


def cell(*nodes, ranks_each=1, sampled=None, exit_codes=None):
    """`nodes`: what each sampler read; the clock of each is an hour ahead of the one before."""
    steps, telemetry = [], []
    for node, channels in enumerate(nodes):
        begin = (node + 1) * HOUR_NS
        for local in range(ranks_each):
            rank = node * ranks_each + local
            rows = step_rows(noisy(400, seed=rank), begin_ns=begin)
            steps.append((step_header(rank=rank, node=node), rows))
        if sampled is None or node in sampled:
            telemetry.append((telemetry_header(node), telemetry_rows(rows, **channels)))
    spec = RunSpec(workload="w", world_size=len(steps), nodes=len(nodes))
    record = a_record(
        spec, participants=assign_participants(len(steps), len(nodes), "cpu"), exit_codes=exit_codes or {}
    )
    return CellData(record, tuple(steps), tuple(telemetry))


def reasons(data):
    [found] = measurements([data])
    assert found.validity is not None
    return found.validity.verdict, [reason.sentence for reason in found.validity.reasons]


def test_quiet_nodes_with_clocks_an_hour_apart_are_valid():
    assert reasons(cell(QUIET, QUIET)) == ("VALID", [])


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_only_the_busy_node_is_blamed(busy):
    nodes = [BUSY if node == busy else QUIET for node in range(3)]
    verdict, said = reasons(cell(*nodes))
    assert verdict == "INVALID"
    assert said == [f"node {busy}: other tenants kept 90 % of a core from the steps"]


def test_where_all_are_busy_nobody_is_named():
    assert reasons(cell(BUSY, BUSY))[1] == ["other tenants kept 90 % of a core from the steps"]


def test_another_node_s_telemetry_says_nothing_even_if_the_clocks_happen_to_agree():
    data = cell(QUIET, BUSY, sampled={0})
    verdict, said = reasons(data)
    assert verdict == "SUSPECT"
    assert said == ["node 1: there is no telemetry: disturbances may have gone unseen"]


def test_a_sampler_that_died_is_that_of_its_node():
    _, said = reasons(cell(QUIET, QUIET, exit_codes={"node1": -9, "rank0": 0}))
    assert said == ["node 1: the sampler died (exit code -9): disturbances may have gone unseen"]


def test_a_rank_that_never_settles_is_named_by_its_number():
    data = cell(QUIET, ranks_each=12)
    slow = step_rows(noisy(400, seed=11) * np.linspace(1, 2, 400), begin_ns=HOUR_NS)
    steps = (*data.steps[:11], (data.steps[11][0], slow))
    _, said = reasons(CellData(data.record, steps, data.telemetry))
    assert said
    assert all(sentence.startswith("rank 11: ") for sentence in said)
