"""Metrics: each once, with a unit and a direction."""

from rigdyno.schema import metric
from rigdyno.schema.metric import THROUGHPUT, Metric

ALL = {name: each for name, each in vars(metric).items() if isinstance(each, Metric)}


def test_no_two_have_the_same_name():
    assert len({each.name for each in ALL.values()}) == len(ALL)


def test_a_rate_is_more_of_something_and_time_waiting_and_energy_less():
    costs = ("energy per", "energies", "waits", "time over")
    for each in ALL.values():
        if each.unit in ("s", "s/launch", "B", "kWh", "J", "W") or any(cost in each.name for cost in costs):
            assert each.better == "lower", each
        elif each.unit != "" and each.name != "usage":  # a busy card is good, and busy cores beside it are not
            assert each.better == "higher", each


def test_a_rate_of_some_item():
    assert THROUGHPUT.unit is None
    rates = [THROUGHPUT.of(item) for item in ("image", "iteration", "byte")]
    assert [each.unit for each in rates] == ["image/s", "it/s", "B/s"]
    assert {(each.name, each.better, each.across) for each in rates} == {("throughput", "higher", "sum")}
