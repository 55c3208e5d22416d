"""Points from CSV files, good and bad."""

from __future__ import annotations

import pytest

from rigdyno.base.errors import BadValue
from rigdyno.features.forecast.points import read_points
from rigdyno.schema.scaling import Given, ScalingPoint


@pytest.fixture
def file(tmp_path):
    def written(text, encoding="utf-8"):
        path = tmp_path / "points.csv"
        path.write_text(text, encoding=encoding)
        return path

    return written


def test_columns_in_any_order_with_others_beside_them(file):
    found = read_points(file("throughput,note,devices,nodes\n41.5,first,1,1\n608, then,16,2\n"))
    assert found == Given(
        source="points.csv",
        points=(ScalingPoint(devices=1, throughput=41.5, nodes=1), ScalingPoint(devices=16, throughput=608.0, nodes=2)),
    )


def test_unsorted_lines_are_sorted_and_repeats_count_as_their_mean(file):
    found = read_points(file("devices,throughput\n4,100\n1,20\n4,121\n")).points
    assert [point.devices for point in found] == [1, 4]
    assert found[1].throughput == 110.5


def test_what_a_spreadsheet_writes(file):
    found = read_points(file("devices,throughput\r\n1,20\r\n2,39\r\n", encoding="utf-8-sig")).points
    assert [point.throughput for point in found] == [20, 39]
    assert found[0].nodes is None


def test_what_is_known_of_the_link_may_stand_in_any_line(file):
    found = read_points(file("devices,throughput,link_gbit_s,bytes_per_step\n1,20,,\n2,39,10,102e6\n4,70,10.0,\n"))
    assert (found.link_gbit_s, found.bytes_per_step) == (10, 102e6)
    assert found.points[0] == ScalingPoint(devices=1, throughput=20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column 'devices'"),
        ("devices,rate\n1,2\n", "has no column 'throughput'"),
        ("devices,throughput\n1,20\n2,\n", "points.csv:3: 'throughput' is empty"),
        ("devices,throughput\n1,20\n2\n", "points.csv:3: 'throughput' is empty"),
        ("devices,throughput\n1,quick\n", "points.csv:2: 'throughput' must be a number, not 'quick'"),
        ("devices,throughput\n1,-3\n", "points.csv:2: 'throughput' must be a number above zero, not -3"),
        ("devices,throughput\n1,nan\n", "points.csv:2: 'throughput' must be a number above zero, not nan"),
        ("devices,throughput\n1,inf\n", "points.csv:2: 'throughput' must lie between 1e-15 and 1e+18"),
        ("devices,throughput\n1,1e-320\n", "points.csv:2: 'throughput' must lie between 1e-15 and 1e+18"),
        ("devices,throughput\n0,3\n", "points.csv:2: 'devices' must be a number above zero, not 0"),
        ("devices,throughput\n1.5,3\n", "points.csv:2: 'devices' must be a whole number, not 1.5"),
        ("devices,throughput,nodes\n2,3,4\n", "points.csv:2: 2 devices can't lie on 4 nodes"),
        ("devices,throughput,nodes\n8,3,1\n8,3,2\n", "8 devices lie on different numbers of nodes"),
        ("devices,throughput,link_gbit_s\n1,3,fast\n", "points.csv:2: 'link_gbit_s' must be a number, not 'fast'"),
        ("devices,throughput,bytes_per_step\n1,3,-1\n", "'bytes_per_step' must be a number above zero, not -1"),
        ("devices,throughput,link_gbit_s\n1,3,10\n2,6,25\n", "'link_gbit_s' is 10 and 25; a machine has only one"),
    ],
)
def test_bad_files_are_refused_with_the_line(file, text, said):
    with pytest.raises(BadValue) as refusal:
        read_points(file(text))
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(BadValue, match="no such file"):
        read_points(tmp_path / "missing.csv")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    with pytest.raises(BadValue, match="it is no text"):
        read_points(tmp_path / "binary.csv")
