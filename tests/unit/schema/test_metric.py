"""Test that each metric is defined once, with a unit and a direction."""

from rigdyno.schema import metric
from rigdyno.schema.metric import THROUGHPUT, Metric

ALL = {name: each for name, each in vars(metric).items() if isinstance(each, Metric)}


def test_metric_names_are_unique():
    assert len({each.name for each in ALL.values()}) == len(ALL)


def test_higher_rates_and_lower_times_and_energies_are_better():
    costs = ("energy per", "energies", "waits", "time over")
    for each in ALL.values():
        if each.unit in ("s", "s/launch", "B", "kWh", "J", "W") or any(cost in each.name for cost in costs):
            assert each.better == "lower", each
        elif each.unit != "" and each.name != "usage":  # a busy GPU is good, busy cores are not
            assert each.better == "higher", each


def test_the_unit_of_a_rate_names_the_item():
    assert THROUGHPUT.unit is None
    rates = [THROUGHPUT.of(item) for item in ("image", "iteration", "byte")]
    assert [each.unit for each in rates] == ["image/s", "it/s", "B/s"]
    assert {(each.name, each.better, each.across) for each in rates} == {("throughput", "higher", "sum")}
