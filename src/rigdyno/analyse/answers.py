"""What a ratio with its interval allows one to say: faster, slower, the same, or that it isn't decided."""

from __future__ import annotations

import math
from typing import NamedTuple

from rigdyno.errors import BadValue
from rigdyno.schema.comparison import Answer
from rigdyno.schema.estimate import Estimate
from rigdyno.schema.metric import Metric
from rigdyno.units import show_number, show_percent

# Processes of the very same code differ by up to 1.5 %, so a hundredth is the least that is worth a verdict.
MARGIN = 0.01
# From here on 'times as fast' reads better than percent.
MANIFOLD = 1.5


def in_favour(ratio: Estimate, metric: Metric) -> Estimate:
    """The ratio of two figures as that of their speeds: above 1 is better, whichever way the metric goes."""
    if metric.better is None:
        raise BadValue(f"neither more nor less of '{metric.name}' is better, so nothing follows from its ratio")
    return ratio if metric.better == "higher" else ratio.mapped(lambda each: 1 / each, ratio.unit)


def answer_to(ratio: Estimate, margin: float = MARGIN) -> Answer:
    """Faster or slower only if the whole interval lies beyond the margin, same only if it lies wholly inside."""
    if not 0 < margin < 1:
        raise BadValue(f"a margin lies between 0 and 1, not at {margin}")
    if ratio.interval is None:
        return "undecided"  # a value without an interval decides nothing
    bound = math.log1p(margin)
    low, high = map(math.log, ratio.interval)
    if low > bound:
        return "faster"
    if high < -bound:
        return "slower"
    return "same" if -bound <= low and high <= bound else "undecided"


class Words(NamedTuple):
    """How a ratio is spoken of."""

    of: str  # what differs
    manifold: str
    change: str


_SPEED = Words("its rate", "is {times} times as fast", "is {change} {answer}")
_ENERGY = Words("its energy an item", "takes {times} times the energy", "takes {change} {answer} energy")


def in_words(name: str, ratio: Estimate, answer: Answer) -> str:
    """'B is 3.1 % slower (2.4 to 3.8 %)'."""
    return _spoken(name, ratio, answer, _SPEED)


def energy_words(name: str, ratio: Estimate, answer: Answer) -> str:
    """'B takes 3.1 % less energy (2.4 to 3.8 %)'."""
    return _spoken(name, ratio, answer, _ENERGY)


def _spoken(name: str, ratio: Estimate, answer: Answer, words: Words) -> str:
    if answer in ("same", "undecided"):
        verdict = "the same" if answer == "same" else "undecided"
        return f"{name}: {verdict}; {words.of} differs by {signed_percent(ratio.value)}{_range(ratio)}"
    if not 1 / MANIFOLD < ratio.value < MANIFOLD:
        value, low, high = (show_number(number) for number in (ratio.value, *ratio.ends))
        return f"{name} {words.manifold.format(times=value)} ({low} to {high})"
    ends = sorted(abs(end - 1) for end in ratio.ends)
    change = words.change.format(change=show_percent(abs(ratio.value - 1)), answer=answer)
    return f"{name} {change} ({_bare(ends[0])} to {show_percent(ends[1])})"


def energy_answer(ratio: Estimate, margin: float = MARGIN) -> Answer:
    """Of a ratio of joules an item: below 1 is less."""
    spoken: dict[Answer, Answer] = {"faster": "more", "slower": "less"}
    answer = answer_to(ratio, margin)
    return spoken.get(answer, answer)


def _range(ratio: Estimate) -> str:
    return "" if ratio.interval is None else f" ({' to '.join(map(signed_percent, ratio.interval))})"


def signed_percent(ratio: float) -> str:
    """How far a ratio lies from 1: '+3.1 %'."""
    sign = "-" if ratio < 1 else "+"
    return f"{sign}{show_percent(abs(ratio - 1))}"


def _bare(share: float) -> str:
    return show_percent(share).removesuffix(" %")
