"""What is said about a link that was given, and not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rigdyno.analyse.link import CrossedStep, Crossing, transfer_seconds
from rigdyno.report.format_entry import scaled_text
from rigdyno.schema.scaling import Link
from rigdyno.units import show_bytes


def rests_on_link(crossing: Crossing, sizes: Sequence[int]) -> list[str]:
    crossed = [size for size in sizes if crossing.crosses(size)]
    if not crossed:
        return []
    link, on_a_node = crossing.link, crossing.devices_per_node
    return [
        f"{', '.join(map(str, crossed))} devices rest on the given link ({show_bytes(link.bytes_per_step)} a step at "
        f"{link.gbit_s:g} Gbit/s between nodes of {on_a_node}), not on a measured crossing: a measurement of "
        f"{2 * on_a_node} devices on 2 nodes would do better."
    ]


def link_contradictions(link: Link, steps: Iterable[CrossedStep]) -> list[str]:
    """The first one: the others follow from it."""
    for step in steps:
        transfer = transfer_seconds(link, step.nodes)
        if transfer > step.seconds:
            return [
                f"the given link and these figures can't both be right: between {step.nodes} nodes the transfer alone "
                f"takes {scaled_text(transfer, 's')} a step, but a whole step of {step.devices} devices "
                f"{scaled_text(step.seconds, 's')} ({step.origin})"
            ]
    return []
