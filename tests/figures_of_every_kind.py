"""Make a figure of each kind that uses all fields of a figure, for tests that draw, and to look at."""

from rigdyno.schema.figure import Axis, Band, Datum, Event, Figure, Panel, Period, Series, datum

TIME = Axis(quantity="time", unit="s", along="time")
DEVICES = Axis(quantity="devices", along="devices")
CATEGORY = Axis(quantity="variant", along="category")


def with_interval(x, value, spread=0.05, **known):
    known = {"confidence": 0.95, "n": 120, "verdict": "VALID", **known}
    return Datum(x=x, value=value, low=value * (1 - spread), high=value * (1 + spread), **known)


def bars(*, log=False):
    own = (
        with_interval("add, as published", 30.6),
        with_interval("add, as intended", 1.8, 0.1, n=8, verdict="SUSPECT", note="other tenants"),
        with_interval("add, corrected", 27.4, 0.02),
        Datum(x="add on a card", value=None, note="no accelerator"),
    )
    printed = (datum("add, as published", 670.0 if log else 40.0), datum("add, corrected", 21.0))
    panel = Panel(
        y=Axis(quantity="rate", unit="it/s"),
        series=(
            Series(name="this machine", role="measured", data=own),
            Series(name="RTX 3090", role="published", data=printed, source="somewhere"),
        ),
    )
    return Figure(
        key="bars-log" if log else "bars", kind="bars", title="Tensor add, beside the published figures", x=CATEGORY,
        panels=(panel,), caption="Iterations a second of three variants", counted="steps",
    )  # fmt: skip


def changes():
    """Make a figure with values on both sides of zero, and the margin that they are compared with."""
    pairs = tuple(
        Datum(x=f"pair {i}", value=v, low=v - 0.6, high=v + 0.6, n=40) for i, v in enumerate((-2.1, 0.4, -1.2))
    )
    panel = Panel(
        y=Axis(quantity="change from A to B", unit="%"),
        series=(Series(name="change", role="measured", data=pairs),),
        bands=(Band(name="counts as the same", low=-1.0, high=1.0),),
    )
    return Figure(
        key="changes", kind="bars", title="A against B", x=CATEGORY, panels=(panel,), counted="rounds",
        caption="The change from A to B in each pair of processes, with the margin",
    )  # fmt: skip


def curve():
    own = (
        *(with_interval(n, 41.0 * n**0.93, 0.04, n=3) for n in (1, 2, 4)),
        Datum(x=8, value=None, note="out of memory"),
        with_interval(16, 500.0, 0.06, n=3, verdict="SUSPECT"),
        with_interval(32, 940.0, 0.06, n=3),
    )
    printed = tuple(datum(n, v) for n, v in {1: 38.0, 2: 70.0, 4: 130.0, 8: 240.0, 16: 430.0, 32: 800.0}.items())
    ideal = tuple(datum(n, 41.0 * n) for n in (1, 2, 4, 8, 16, 32))
    series = (
        Series(name="this machine", role="measured", data=own),
        Series(name="K80", role="published", data=printed, source="somewhere"),
        Series(name="ideal", role="ideal", data=ideal),
    )
    return Figure(
        key="curve", kind="curve", title="Throughput by number of devices", x=DEVICES,
        panels=(Panel(y=Axis(quantity="throughput", unit="image/s"), series=series),),
        caption="ResNet-50, held against perfect scaling of one device", counted="processes",
    )  # fmt: skip


def timeline():
    def rates(x):
        return None if 30 <= x < 36 else 300.0 - (0 if x < 40 else min(200.0, (x - 40) * 8)) + (7 * x) % 11

    rate = tuple(datum(float(x), rates(x)) for x in range(90))
    clock = tuple(datum(float(x), 3100.0 if x < 40 else 1900.0) for x in range(90))
    heat = tuple(datum(float(x), 40 + min(50.0, x)) for x in range(90))
    panels = tuple(
        Panel(title=name, y=Axis(quantity=name, unit=unit), series=(Series(name=name, role="measured", data=data),))
        for name, unit, data in (("rate", "it/s", rate), ("clock", "MHz", clock), ("temperature", "°C", heat))
    )
    return Figure(
        key="timeline", kind="timeline", title="How the rate held", x=TIME, panels=panels,
        events=(
            Event(x=8.0, label="warm-up cut", kind="warm_up_cut"),
            Event(x=42.0, label="throttling begins", kind="throttling"),
        ),
        periods=(Period(name="warm-up", start=0.0, end=8.0), Period(name="steady", start=8.0, end=90.0)),
        caption="Rate, clock and temperature of one process", verdict="SUSPECT", reasons=("throttled",),
    )  # fmt: skip


def stack():
    seconds = {
        "data": (0.01, 0.012, 0.012), "broadcast": (0.0, 0.05, 0.09), "forward": (0.2, 0.21, 0.22),
        "backward": (0.4, 0.41, 0.43), "communication": (0.0, 0.12, 0.3), "optimizer": (0.03, 0.03, 0.03),
    }  # fmt: skip
    series = tuple(
        Series(
            name=name,
            role="measured",
            data=tuple(datum(f"{n} devices", v) for n, v in zip((1, 2, 4), values, strict=True)),
        )
        for name, values in seconds.items()
    )
    return Figure(
        key="stack", kind="stack", title="Where the time of a step goes", x=Axis(quantity="devices", along="category"),
        panels=(Panel(y=Axis(quantity="time of a step", unit="s"), series=series),),
        caption="Mean over all steps and ranks",
    )  # fmt: skip


def distribution():
    def binned(counts, first):
        return tuple(
            Datum(x=first + i * 1e-3, x_end=first + (i + 1) * 1e-3, value=float(c)) for i, c in enumerate(counts)
        )

    series = (
        Series(name="kept", role="measured", data=binned((3, 40, 180, 230, 90, 30, 8, 2, 0, 1), 0.020)),
        Series(name="cut: warm-up", role="measured", data=binned((1, 3, 6, 9, 4, 2), 0.027), cut=True),
    )
    return Figure(
        key="distribution", kind="distribution", title="How long steps took",
        x=Axis(quantity="time of a step", unit="s"),
        panels=(Panel(y=Axis(quantity="steps"), series=series),),
        events=(Event(x=0.0232, label="median 23.2 ms"),), caption="584 steps were kept and 25 cut", verdict="VALID",
    )  # fmt: skip


def roofline():
    memory, peak = 38e9, 210e9
    bound = (datum(0.05, 0.05 * memory), datum(peak / memory, peak), datum(500.0, peak))
    work = (
        Datum(x=0.083, value=2.6e9, low=2.5e9, high=2.7e9, n=90, verdict="VALID", label="tensor add"),
        Datum(x=170.0, value=205e9, low=200e9, high=210e9, n=40, verdict="VALID", label="matrix product"),
        Datum(x=20.0, value=90e9, low=80e9, high=100e9, n=40, verdict="INVALID", label="ResNet-50"),
    )
    series = (
        Series(name="memory and float32 arithmetic, as measured", role="limit", data=bound),
        Series(name="workloads", role="measured", data=work),
    )
    return Figure(
        key="roofline", kind="roofline", title="Roofline of this machine",
        x=Axis(quantity="arithmetic intensity", unit="FLOP/B", along="intensity", scale="log"),
        panels=(Panel(y=Axis(quantity="rate", unit="FLOP/s", scale="log"), series=series),),
        caption="What a workload can reach at most, by the limits that were measured in this run", counted="steps",
    )  # fmt: skip


def fan():
    own = tuple(with_interval(n, 41.0 * n**0.95, 0.03, n=3) for n in (1, 2, 4, 8, 16, 32))
    far = tuple(
        Datum(x=n, value=41.0 * n**0.94, low=41.0 * n ** (0.94 - 0.0006 * n), high=41.0 * n**0.97, confidence=0.9)
        for n in range(33, 129, 5)
    )
    series = (
        Series(name="measured", role="measured", data=own),
        Series(name="forecast", role="predicted", data=far),
    )
    return Figure(
        key="fan", kind="fan", title="Throughput by number of devices", x=DEVICES,
        panels=(Panel(y=Axis(quantity="throughput", unit="image/s"), series=series),),
        events=(Event(x=32.0, label="the largest that was measured; behind it a forecast", kind="end_of_measured"),),
        caption="From 6 points of k80.csv", counted="processes",
    )  # fmt: skip


def leaderboard():
    own = (with_interval("my box", 30.6, 0.02), with_interval("Test CPU", 24.0, 0.04))
    printed = (("NVIDIA RTX 3090", 670.0), ("NVIDIA RTX 3060", 320.0), ("Ryzen 9", 33.0), ("Core i7", 14.5))
    series = (
        Series(name="measured here", role="measured", data=own),
        Series(name="published", role="published", data=tuple(datum(name, value) for name, value in printed[2:])),
    )
    return Figure(
        key="leaderboard", kind="leaderboard", title="Leaderboard: CPUs", x=Axis(quantity="device", along="category"),
        panels=(Panel(y=Axis(quantity="rate", unit="it/s"), series=series),), caption="Tensor add as published",
        counted="steps",
    )  # fmt: skip


EVERY = {
    each.key: each
    for each in (
        bars(),
        changes(),
        curve(),
        timeline(),
        stack(),
        distribution(),
        roofline(),
        fan(),
        leaderboard(),
        bars(log=True),
    )
}
