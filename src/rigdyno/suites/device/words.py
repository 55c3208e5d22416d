"""The sentences of the device suite, all computed from the figures."""

from __future__ import annotations

from collections.abc import Sequence

from rigdyno.analyse.validity.verdict import bytes_per_s, fits_the_cache, memory_limit
from rigdyno.base.units import rate_unit, show_number, show_percent, show_scaled
from rigdyno.reference.published import TENSOR_ADD_SIZE, PublishedAdd, load_tensor_add
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.measured import Measurement
from rigdyno.schema.view import Headline, Neighbour, Published
from rigdyno.suites.device.tables import filter_by_workload, kind_of, size_of, variant


def standing(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Return the rank of this machine among the published machines of its kind."""
    mine = _find_variant(measurements, "as_published")
    unranked = _why_unranked(mine)
    if mine is None or unranked is not None:
        return (f"{unranked}.",)
    faster, slower = _split_published(mine)
    others, kind = len(faster) + len(slower), kind_of(mine).upper()
    place = f"Number {len(faster) + 1} of {others + 1} beside the {others} published {kind}s"
    around = [f"above {slower[0].device} ({show_number(slower[0].iterations_per_s)} it/s)"] if slower else []
    around += [f"below {faster[-1].device} ({show_number(faster[-1].iterations_per_s)} it/s)"] if faster else []
    return (f"{place}: {', '.join(around)}.",)


def headline(measurements: Sequence[Measurement]) -> Headline | None:
    """Return the rate of the published loop, by which the published machines are ranked."""
    mine = _find_variant(measurements, "as_published")
    if mine is None:
        return None
    what, unranked = "tensor add, as published", _why_unranked(mine)
    if unranked is not None:
        return Headline(what=what, figure=mine.throughput(), status=mine.status, place=unranked)
    faster, slower = _split_published(mine)
    number, others = len(faster) + 1, len(faster) + len(slower)
    return Headline(
        what=what,
        figure=mine.throughput(),
        status=mine.status,
        place=f"number {number} of {others + 1} beside the {others} published {kind_of(mine).upper()}s",
        neighbours=tuple(map(_neighbour, (*faster[-1:], *slower[:1]))),
    )


def _neighbour(row: PublishedAdd) -> Neighbour:
    return Neighbour(
        name=row.device, figure=Published(value=row.iterations_per_s, unit=rate_unit("iteration"), source=row.source)
    )


def _why_unranked(mine: Measurement | None) -> str | None:
    if mine is None or not isinstance(mine.throughput(), Estimate):
        return "Not ranked among the published machines: the published variant gave no figure here"
    if mine.status == "INVALID":
        return "Not ranked among the published machines: the figure is INVALID"
    if size_of(mine) != TENSOR_ADD_SIZE:
        return f"Not ranked: the published size is {TENSOR_ADD_SIZE}, this was {size_of(mine)}"
    return None


def _split_published(mine: Measurement) -> tuple[list[PublishedAdd], list[PublishedAdd]]:
    """Return the faster and the other published machines of its kind, each from the fastest on."""
    value, kind = _rate(mine) or 0.0, kind_of(mine)
    others = sorted((row for row in load_tensor_add() if row.kind == kind), key=lambda row: -row.iterations_per_s)
    return [row for row in others if row.iterations_per_s > value], [r for r in others if r.iterations_per_s <= value]


def closing(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Return sentences about this machine's own figures."""
    sentences = [_limit_sentence(measurements), _eager_sentence(measurements)]
    return (" ".join(sentence for sentence in sentences if sentence),) if any(sentences) else ()


def _limit_sentence(measurements: Sequence[Measurement]) -> str | None:
    limit, mine = memory_limit(measurements), _find_variant(measurements, "as_published")
    moved = bytes_per_s(mine) if mine is not None else None
    if mine is None or limit is None or moved is None or fits_the_cache(mine):
        return None
    return (
        f"The published loop moves {show_scaled(moved.value, 'B/s')}, {show_percent(moved.value / limit.value)} of the "
        f"{show_scaled(limit.value, 'B/s')} that this memory was seen to carry in the same run."
    )


def _eager_sentence(measurements: Sequence[Measurement]) -> str | None:
    rates = [_rate(_find_variant(measurements, name)) for name in ("as_intended", "as_published")]
    if rates[0] is None or rates[1] is None:
        return None
    return (
        f"Run as it was meant, making both operands each time, it does {show_number(rates[0])} it/s: "
        f"{show_number(rates[1] / rates[0])} times fewer, the price of fresh memory and of filling it."
    )


def published_summary() -> tuple[str, ...]:
    """Return the comparison that the document intended, computed from its own rows."""
    rows = {row.device: row for row in load_tensor_add()}
    best = max((row for row in rows.values() if row.doubt is None), key=lambda row: row.iterations_per_s)
    cpus = sorted((row for row in rows.values() if row.kind == "cpu"), key=lambda row: -row.iterations_per_s)
    card = rows["NVIDIA RTX 3090"]
    ratios = ", ".join(
        f"{show_number(card.iterations_per_s / cpu.iterations_per_s)} times the {cpu.device}'s" for cpu in cpus
    )
    return (
        f"As published, the {card.device}'s {card.iterations_per_s:g} it/s are {ratios}; the document says '6.8 %', "
        f"which no two of its rows give. Its highest row that can be right is the {best.device}'s "
        f"{best.iterations_per_s:g}.",
    )


def _find_variant(measurements: Sequence[Measurement], name: str) -> Measurement | None:
    found = [m for m in filter_by_workload(measurements, "tensor_add") if variant(m) == name]
    return found[0] if found else None


def _rate(measurement: Measurement | None) -> float | None:
    rate = measurement.throughput() if measurement is not None else None
    return rate.value if isinstance(rate, Estimate) else None
