"""The published tables of the cluster benchmark, with the notes needed to read them."""

from __future__ import annotations

from rigdyno.reference.published import PublishedJob, PublishedSummary, load_cluster_jobs, load_cluster_summary
from rigdyno.schema.estimate import Number
from rigdyno.schema.metric import JOB_TIME, POWER, USAGE
from rigdyno.schema.view import Column, Entry, Published, RatioEntry, Row, Table, Text

LIBRARY = Column(key="library", title="library", numeric=False)

TWO_MODELS = (
    "the published contrast of GPU usage compares two models: TensorFlow's network has 1,199,882 parameters, PyTorch's "
    "21,840; batches are of 128 and 64 images"
)

NO_TEST_LAP = "the published TensorFlow script evaluates nothing: no test lap can explain its distance from the ideal"


def cards(title: str) -> Column:
    return Column(key="cards", title=title, identifies=True)


def published_times() -> Table:
    found = load_cluster_jobs()
    sizes = sorted({cards for job in found for cards in job.seconds})
    return Table(
        title="Published, seconds by number of cards: Jetson Nano kits, one card each",
        columns=(
            LIBRARY,
            *(Column(key=str(size), title=str(size), metric=JOB_TIME, bare=True) for size in sizes),
        ),
        rows=tuple(_job_row(job) for job in found),
        notes=("read off graphs by eye, to about 2 %", NO_TEST_LAP),
    )


def _job_row(job: PublishedJob) -> Row:
    times: dict[str, Entry] = {
        str(cards): Published(value=seconds, unit="s", source=job.source) for cards, seconds in job.seconds.items()
    }
    return Row(
        entries={"library": Text(text=f"{_library_name(job.framework)}, {job.job}"), **times},
        origin="published",
    )


def published_summary() -> Table:
    found = load_cluster_summary()
    idle = {each.cards: each.watts for each in found if each.framework == "idle"}
    return Table(
        title="Published usage and power: Jetson Nano kits",
        columns=(
            LIBRARY,
            cards("cards"),
            Column(key="low", title="GPU from", metric=USAGE),
            Column(key="high", title="to", metric=USAGE),
            Column(key="cpu", title="CPU", metric=USAGE),
            Column(key="power", title="power", metric=POWER),
            Column(key="net", title="net of idle", metric=POWER),
        ),
        rows=tuple(_summary_row(each, idle) for each in found),
        notes=(TWO_MODELS, "the idle rows stand in the repository's table, not in the document"),
    )


def _summary_row(each: PublishedSummary, idle: dict[int, float]) -> Row:
    def watts(value: float) -> Published:
        return Published(value=value, unit="W", source=each.source)

    entries: dict[str, Entry] = {
        "library": Text(text=_library_name(each.framework)),
        "cards": Number(value=each.cards),
        "power": watts(each.watts),
    }
    if each.device_usage is not None:
        low, high = each.device_usage
        entries |= {"low": RatioEntry(value=low, of="time"), "high": RatioEntry(value=high, of="time")}
    if each.cpu_usage is not None:
        entries["cpu"] = RatioEntry(value=each.cpu_usage, of="cores")
    if each.framework != "idle" and each.cards in idle:
        entries["net"] = watts(each.watts - idle[each.cards])
    return Row(entries=entries, origin="published", notes=("spotty",) if each.spotty else ())


def _library_name(framework: str) -> str:
    return {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}.get(framework, framework)
