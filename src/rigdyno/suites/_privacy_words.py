"""What the privacy suite says: why these figures, and what they come to."""

from __future__ import annotations

from rigdyno.reference.published import private_training
from rigdyno.schema.view import Headline, Neighbour, Published
from rigdyno.suites import _privacy_tables as tables
from rigdyno.suites._privacy_systems import BATCH
from rigdyno.suites._privacy_tables import Shown
from rigdyno.units import show_seconds

WHY = (
    "For whoever has to train on other people's data, and asks what protecting it costs: the same network on the same "
    "data, each system at the largest batch that the same memory holds.",
    "Memory is the same for all because it is what one pays for. Per-sample gradients are what private training keeps "
    "in it, so the batch that fits tells engines apart before their speed does.",
)


def introduction(shown: Shown) -> tuple[str, ...]:
    return WHY if shown.rows else ()


def headline(shown: Shown) -> Headline | None:
    """What our engine costs over the fastest plain training."""
    ours = next((each for system, each in shown.rows if system.update == "dp_fast"), None)
    if ours is None:
        return None
    rows = {row.system: row for row in private_training() if row.device == "AMD EPYC 7763"}
    plain, private = rows["pytorch"].seconds, rows["pytorch+opacus"].seconds
    assert plain is not None
    assert private is not None
    ratio = float(f"{private / plain:.3g}")  # it isn't printed there: no more digits than a ratio deserves
    figure = Published(value=ratio, unit="x", source=rows["pytorch"].source)
    return Headline(
        what="an epoch, private over plain",
        figure=tables.ratio(shown, ours),
        status=ours.status,
        place="beside the published ratio on a CPU",
        neighbours=(Neighbour(name="Opacus on an EPYC 7763", figure=figure),),
    )


def closing(shown: Shown) -> tuple[str, ...]:
    said = (_price(shown), _batches(shown), _quickest(shown), _unprotected(shown))
    return tuple(words for words in said if words is not None)


def _private(shown: Shown) -> list[tuple[str, float, float, float]]:
    """Name, ratio to the fastest plain of the same images, and both times; the cheapest first."""
    found = []
    for system, each, seconds in shown.timed():
        best = shown.fastest_plain(each)
        if system.protection.private and best is not None:
            plain = best[1].value
            found.append((shown.name_of(system, each), seconds.value / plain, seconds.value, plain))
    return sorted(found, key=lambda each: each[1])


def _price(shown: Shown) -> str | None:
    private = _private(shown)
    if not private:
        return None
    (first, least, seconds, plain), (last, most, longest, _) = private[0], private[-1]
    head = (
        f"A private result costs from {least:.2f} times the time of the fastest plain training ({first}: "
        f"{show_seconds(seconds)} an epoch, against {show_seconds(plain)})"
    )
    return f"{head}." if last == first else f"{head} to {most:.1f} times ({last}: {show_seconds(longest)})."


def _batches(shown: Shown) -> str | None:
    sizes = {
        shown.name_of(system, each): batch
        for system, each in shown.rows
        if isinstance(batch := each.spec.options.get(BATCH), int) and each.spec.largest
    }
    if len(sizes) < 2:
        return None
    most, least = max(sizes, key=lambda name: sizes[name]), min(sizes, key=lambda name: sizes[name])
    return (
        f"In the same memory {most} holds a batch of {sizes[most]}, {least} one of {sizes[least]}: what is kept for "
        "each sample decides it."
    )


def _quickest(shown: Shown) -> str | None:
    """Whether what holds the largest batch is also what is quickest."""
    timed = shown.timed()
    if len(timed) < 2 or not all(each.spec.largest for _, each, _ in timed):
        return None
    return (
        "The largest batch is seldom the quickest: `rigdyno run efficientnet_cifar100 --sweep batch_size=16,64,256` "
        "shows the time along it."
    )


def _unprotected(shown: Shown) -> str | None:
    if not shown.rows or any(system.protection.label == "ok" for system, _ in shown.rows):
        return None
    return (
        "None of the systems measured here protects everything: a private result leaves the data readable for whoever "
        "trains. That takes several parties or an enclave, too."
    )
