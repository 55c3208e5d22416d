"""Test figures in characters against plots made by hand."""

import math

import pytest
from msgspec.structs import replace

from rigdyno.report.plot import draw_figure_as_text, sparkline
from rigdyno.schema.figure import Axis, Datum, Event, Figure, Panel, Series, datum


def over(along="time", kind="timeline", series=(), unit="it/s", **changes):
    axis = Axis(quantity=along, unit="s" if along == "time" else "", along=along)
    panels = (Panel(y=Axis(quantity="rate", unit=unit), series=tuple(series)),)
    return Figure(**{"key": "k", "kind": kind, "title": "rate", "x": axis, "panels": panels, **changes})


def a_series(values, role="measured"):
    return Series(name=role, role=role, data=tuple(datum(x, value) for x, value in values.items()))


def test_a_sparkline_begins_at_zero_and_a_missing_reading_is_a_gap():
    assert sparkline([0, 1, 2, 4, math.nan, 8]) == "▁▂▃▅·█"
    assert sparkline([0.5, 0.5], highest=1.0) == "▅▅"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([math.nan]) == "·"
    assert sparkline([-1, 2]) == "▁█"


def test_a_plot_starts_at_zero_and_marks_events():
    cut = Event(x=5.0, label="cut", kind="warm_up_cut")
    figure = over(series=[a_series({0.0: 70.0, 10.0: 30.0, 20.0: 10.0})], events=(cut,))
    # Ten columns of 20 s / 9.5: seconds 0, 5, 10 and 20 are in columns 0, 2, 4 and 9.
    assert draw_figure_as_text(figure, 22) == [
        "rate (it/s)",
        "     70.0 ◦ │",
        "            │",
        "            │",
        "            │",
        "            │ •",
        "            │",
        "            │      •",
        "        0   │",
        "          0 s   20 s",
        "          │ cut",
    ]


def a_forecast(**changes):
    far = Datum(x=8.0, value=50.0, low=30.0, high=70.0, confidence=0.9)
    series = [a_series({1.0: 10.0, 2.0: 20.0, 4.0: 40.0}), Series(name="forecast", role="predicted", data=(far,))]
    mark = Event(x=4.0, label="so far", kind="end_of_measured")
    return over("devices", "fan", **{"series": series, "events": (mark,), **changes})


def test_a_plot_distinguishes_measured_from_predicted_and_draws_the_interval():
    assert draw_figure_as_text(a_forecast(), 45)[1:] == [
        "     70.0                 │               ░",
        "                          │               ░",
        "                          │               ◦",
        "                          •               ░",
        "                          │               ░",
        "                  •       │",
        "              •           │",
        "        0                 │",
        "          0                       8 devices",
        "          • measured   ◦ forecast",
        "          ░ 90 % interval",
        "          │ so far",
    ]


def test_a_column_of_both_shows_only_the_measured_value():
    near = Datum(x=1001.0, value=70.0, low=60.0, high=80.0)
    figure = a_forecast(series=[a_series({1000.0: 10.0}), Series(name="forecast", role="predicted", data=(near,))])
    drawn = "".join(draw_figure_as_text(figure, 45)[1:9])
    assert ("•" in drawn, "◦" in drawn, "░" in drawn) == (True, False, False)


def test_every_role_has_a_distinct_sign():
    roles = ("measured", "published", "predicted", "ideal", "limit")
    series = [a_series({10.0 * i + x: 5.0 * i + 1 for x in (1, 2, 3)}, role) for i, role in enumerate(roles)]
    figure = over("devices", "curve", series)
    legend = "".join(draw_figure_as_text(figure, 80)[-2:])
    signs = [legend.split(name)[0].split()[-1] for name in ("measured", "published", "forecast", "ideal", "limit")]
    assert len(set(signs)) == len(roles)


def test_a_plot_without_values_is_empty_and_one_value_is_drawn():
    assert draw_figure_as_text(over(series=[a_series({})]), 40) == []
    assert draw_figure_as_text(over(series=[a_series({1.0: None})]), 40) == []
    (top,) = [line for line in draw_figure_as_text(over(series=[a_series({3.0: 2.0})]), 40) if "•" in line]
    assert top.strip() == f"2.00 {'•':>28}"  # the last of 28 columns


def test_a_gap_leaves_its_columns_empty():
    figure = over(series=[a_series({float(x): None if 3 <= x <= 6 else 10.0 for x in range(10)})])
    (line,) = [line for line in draw_figure_as_text(figure, 22) if "•" in line]
    assert line[10:] == "•••    •••"


def test_negative_values_are_drawn():
    lines = draw_figure_as_text(over(series=[a_series({0.0: -5.0, 1.0: 5.0})]), 40)
    assert lines[1].split() == ["5.00", "•"]
    assert lines[8].split() == ["-5.00", "•"]


def test_panels_are_below_each_other_with_titles():
    figure = over(series=[a_series({1.0: 2.0})])
    (panel,) = figure.panels
    other = replace(panel, title="clock", y=Axis(quantity="clock", unit="MHz"))
    lines = draw_figure_as_text(replace(figure, panels=(panel, other)), 40)
    assert lines[0] == "rate (it/s)"
    assert lines[10:12] == ["", "clock (MHz)"]


def test_a_curve_with_few_points_or_no_ideal_is_not_drawn():
    three, ideal = a_series({1.0: 1.0, 2.0: 2.0, 3.0: 2.5}), a_series({1.0: 1.0, 3.0: 3.0}, "ideal")
    assert draw_figure_as_text(over("devices", "curve", [three, ideal]), 80)
    assert draw_figure_as_text(over("devices", "curve", [three]), 80) == []
    assert draw_figure_as_text(over("devices", "curve", [a_series({1.0: 1.0, 2.0: 2.0}), ideal]), 80) == []


@pytest.mark.parametrize("kind", ["bars", "stack", "distribution", "roofline", "leaderboard"])
def test_kinds_that_a_table_shows_better_are_not_drawn(kind):
    assert draw_figure_as_text(over("category", kind, [a_series({"a": 1.0})]), 80) == []


def test_a_plot_fits_its_width():
    figure = over(series=[a_series({float(x): float(x) for x in range(500)})], unit="B/s")
    for width in (40, 80, 200):
        assert max(map(len, draw_figure_as_text(figure, width))) <= width
    assert "(kB/s)" not in draw_figure_as_text(figure, 80)[0]
