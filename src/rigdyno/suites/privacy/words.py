"""The sentences of the privacy suite: why these figures are measured, and what they show."""

from __future__ import annotations

from rigdyno.base.units import show_seconds
from rigdyno.reference.published import load_private_training
from rigdyno.schema.view import Headline, Neighbour, Published
from rigdyno.suites.privacy import tables
from rigdyno.suites.privacy.systems import BATCH
from rigdyno.suites.privacy.tables import PrivacyResults

WHY = (
    "For whoever has to train on other people's data, and asks what protecting it costs: the same network on the same "
    "data, each system at the largest batch that the same memory holds.",
    "Memory is the same for all because it is what one pays for. Per-sample gradients are what private training keeps "
    "in it, so the batch that fits tells engines apart before their speed does.",
)


def introduction(results: PrivacyResults) -> tuple[str, ...]:
    return WHY if results.rows else ()


def headline(results: PrivacyResults) -> Headline | None:
    """Return the time of Rigdyno's engine relative to the fastest plain training."""
    ours = next((each for system, each in results.rows if system.update == "dp_fast"), None)
    if ours is None:
        return None
    rows = {row.system: row for row in load_private_training() if row.device == "AMD EPYC 7763"}
    plain, private = rows["pytorch"].seconds, rows["pytorch+opacus"].seconds
    assert plain is not None
    assert private is not None
    ratio = float(f"{private / plain:.3g}")  # the document doesn't print it: no more digits than a ratio has
    figure = Published(value=ratio, unit="x", source=rows["pytorch"].source)
    return Headline(
        what="an epoch, private over plain",
        figure=tables.ratio_to_plain(results, ours),
        status=ours.status,
        place="beside the published ratio on a CPU",
        neighbours=(Neighbour(name="Opacus on an EPYC 7763", figure=figure),),
    )


def closing(results: PrivacyResults) -> tuple[str, ...]:
    said = (_price_sentence(results), _batch_sentence(results), _speed_hint(results), _protection_sentence(results))
    return tuple(words for words in said if words is not None)


def _private_costs(results: PrivacyResults) -> list[tuple[str, float, float, float]]:
    """Return name, ratio to the fastest plain training, and both times; the cheapest first."""
    found = []
    for system, each, seconds in results.with_times():
        best = results.fastest_plain(each)
        if system.protection.private and best is not None:
            plain = best[1].value
            found.append((results.name_of(system, each), seconds.value / plain, seconds.value, plain))
    return sorted(found, key=lambda each: each[1])


def _price_sentence(results: PrivacyResults) -> str | None:
    private = _private_costs(results)
    if not private:
        return None
    (first, least, seconds, plain), (last, most, longest, _) = private[0], private[-1]
    head = (
        f"A private result costs from {least:.2f} times the time of the fastest plain training ({first}: "
        f"{show_seconds(seconds)} an epoch, against {show_seconds(plain)})"
    )
    return f"{head}." if last == first else f"{head} to {most:.1f} times ({last}: {show_seconds(longest)})."


def _batch_sentence(results: PrivacyResults) -> str | None:
    sizes = {
        results.name_of(system, each): batch
        for system, each in results.rows
        if isinstance(batch := each.spec.options.get(BATCH), int) and each.spec.largest
    }
    if len(sizes) < 2:
        return None
    most, least = max(sizes, key=lambda name: sizes[name]), min(sizes, key=lambda name: sizes[name])
    return (
        f"In the same memory {most} holds a batch of {sizes[most]}, {least} one of {sizes[least]}: what is kept for "
        "each sample decides it."
    )


def _speed_hint(results: PrivacyResults) -> str | None:
    """Hint at a sweep of batch sizes: the largest batch is seldom the fastest."""
    timed = results.with_times()
    if len(timed) < 2 or not all(each.spec.largest for _, each, _ in timed):
        return None
    return (
        "The largest batch is seldom the quickest: `rigdyno run efficientnet_cifar100 --sweep batch_size=16,64,256` "
        "shows the time along it."
    )


def _protection_sentence(results: PrivacyResults) -> str | None:
    if not results.rows or any(system.protection.label == "ok" for system, _ in results.rows):
        return None
    return (
        "None of the systems measured here protects everything: a private result leaves the data readable for whoever "
        "trains. That takes several parties or an enclave, too."
    )
