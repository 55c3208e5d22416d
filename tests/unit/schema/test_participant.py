"""Test participants and the paths of their files."""

from __future__ import annotations

import re

import msgspec
import pytest

from rigdyno.base.errors import DamagedRun
from rigdyno.schema.layout import CellFolder, log_of, returned_names
from rigdyno.schema.spec import Participant, assign_participants, on_node, ranks_among, sampler_among, sampler_of
from rigdyno.store.folder import StoredCell
from support import a_rank, a_record, rows_path, write_steps


def test_ranks_are_assigned_in_blocks_and_every_node_has_a_sampler():
    everybody = assign_participants(6, 3, "cpu")
    assert [(each.id, each.node, each.clock) for each in ranks_among(everybody)] == [
        ("rank0", 0, "node0"), ("rank1", 0, "node0"), ("rank2", 1, "node1"),
        ("rank3", 1, "node1"), ("rank4", 2, "node2"), ("rank5", 2, "node2"),
    ]  # fmt: skip
    assert [sampler_among(on_node(everybody, node)) for node in range(3)] == [sampler_of(node) for node in range(3)]
    assert sampler_among(assign_participants(1, 1, "cpu", sampled=False)) is None


@pytest.mark.parametrize(
    ("ranks", "nodes", "device", "devices"),
    [
        (2, 1, "cpu", ["cpu", "cpu"]),
        (4, 2, "cuda", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (1, 1, "cuda", ["cuda"]),
        (1, 1, "cuda:1", ["cuda:1"]),
    ],
)
def test_every_rank_has_a_device_of_its_own_node(ranks, nodes, device, devices):
    assert [each.device for each in ranks_among(assign_participants(ranks, nodes, device))] == devices


@pytest.mark.parametrize("name", ["", ".", "..", "../rank0", "a/b", "a\0b", ".hidden", "x" * 65, "rank0\n"])
def test_a_participant_that_could_name_another_folder_is_refused(name):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"id": name}, Participant)


def test_readers_go_by_the_header_whatever_the_files_are_called(tmp_path):
    """Use 11 ranks and more, whose names sort differently from their numbers."""
    for rank in (11, 2, 0, 10, 1, *range(3, 10)):
        write_steps(rows_path(tmp_path, name=f"rank{rank}"), [1000 + rank] * 3, rank=rank)
    cell = StoredCell(a_record(participants=assign_participants(12, 1, "cpu")), tmp_path)
    found = cell.steps()
    assert [header.participant.rank for header, _ in found] == list(range(12))
    assert [int(rows["end_ns"][0] - rows["start_ns"][0]) for _, rows in found] == [1000 + rank for rank in range(12)]


def test_rows_in_the_folder_of_another_participant_are_refused(tmp_path):
    write_steps(rows_path(tmp_path, name="rank1"), [1000], rank=0)
    cell = StoredCell(a_record(participants=assign_participants(2, 1, "cpu")), tmp_path)
    with pytest.raises(DamagedRun, match="rows of rank0, but is in the folder of another participant"):
        cell.steps()


def test_rows_of_an_unknown_participant_are_refused(tmp_path):
    write_steps(rows_path(tmp_path, name="rank7"), [1000], rank=7)
    with pytest.raises(DamagedRun, match="rank7, which took no part in this cell"):
        StoredCell(a_record(participants=assign_participants(2, 1, "cpu")), tmp_path).steps()


def test_a_node_sends_back_what_its_participants_leave_and_nothing_else():
    assert "launcher.json" in returned_names(sampler_of(1))
    assert "launcher.json" not in returned_names(a_rank(1))
    for name in (*returned_names(a_rank()), *returned_names(sampler_of(0))):
        assert re.fullmatch(r"[a-z]+\.(rows|json|txt|log)", name)
        assert name != "record.json"


def test_log_of_names_the_logs_of_the_ranks():
    assert log_of("01-x", ["rank0/log.txt", "node0/log.txt", "record.json"]) == "cells/01-x/rank0/log.txt"
    assert log_of("01-x", ["rank0/log.txt", "rank1/log.txt"]) == "cells/01-x/rank*/log.txt"
    assert log_of("01-x", ["record.json"]) is None


def test_files_returns_paths_relative_to_the_cell(tmp_path):
    write_steps(rows_path(tmp_path), [1])
    (tmp_path / "spec.json").write_text("{}")
    assert CellFolder(tmp_path).files() == ("rank0/steps.rows", "spec.json")
