"""A duel by joules: what the meter says of each turn, and turns that are too short for it."""

import numpy as np
import pytest

from rigdyno.analyse.pairs import analyse_pairs
from rigdyno.analyse.process import CellData
from rigdyno.schema.channel import Channel
from rigdyno.schema.estimate import Missing
from rigdyno.schema.samples import telemetry_fields, telemetry_header
from rigdyno.schema.spec import DuelPlan, RunSpec, sampler_of
from scripted_rows import NS, step_header, step_rows
from support import a_record

PLUG = Channel("w", "W", "power", device="wall", rail="plug", scope="wall", extent="whole", sensor="external")
PLAN = DuelPlan(
    what="w", names=("a", "b"), margin=0.01, least_pairs=6, budget_seconds=600.0, by="joules", turn_seconds=11.0
)
ITEMS = 100.0


def pair_of(number, watts_a, watts_b, *, turn=11.0, rounds=4, hertz=2.0, metered=True):
    """Turns of A and B one after the other, in the order A B B A, while the plug draws what each of them does."""
    order = ["a", "b", "b", "a"] * (rounds // 2)
    begins = 5 * NS + (np.arange(len(order)) * turn * NS).astype("<i8")
    at = np.arange(4 * NS, begins[-1] + int((turn + 1) * NS), int(NS / hertz), dtype="<i8")
    arms = np.array(order)[np.clip(np.searchsorted(begins, at, side="right") - 1, 0, len(order) - 1)]
    rows = np.zeros(len(at), dtype=np.dtype(list(telemetry_fields(["w"]))))
    rows["at_ns"], rows["w"] = at, np.where(arms == "a", watts_a, watts_b)
    telemetry = ((telemetry_header([PLUG], sampler_of(0)), rows),) if metered else ()
    cells = []
    for arm in ("a", "b"):
        turns = np.concatenate(
            [
                step_rows([turn], items=ITEMS, begin_ns=begin)
                for begin, who in zip(begins, order, strict=True)
                if who == arm
            ]
        )
        record = a_record(RunSpec(workload="w"), cell=f"pair{number}-{arm}", pair=number, arm=arm)
        cells.append(CellData(record, ((step_header(), turns),), telemetry if arm == "a" else ()))
    return cells


def fought(*pairs):
    return analyse_pairs([cell for pair in pairs for cell in pair], PLAN)


def test_the_ratio_is_of_joules_an_item():
    duel = fought(*(pair_of(number, 50.0, 40.0) for number in range(1, 7)))
    assert duel.comparison.ratio.value == pytest.approx(0.8, rel=0.02)
    assert (duel.comparison.answer, duel.comparison.metric.name) == ("less", "energy per item")
    assert duel.comparison.sentence.startswith("B takes 2")
    assert "less energy" in duel.comparison.sentence


def test_more_and_the_same():
    assert fought(*(pair_of(number, 40.0, 50.0) for number in range(1, 7))).comparison.answer == "more"
    assert fought(*(pair_of(number, 40.0, 40.0) for number in range(1, 7))).comparison.answer == "same"


def test_turns_of_too_few_updates_are_not_comparable():
    duel = fought(pair_of(1, 50.0, 40.0, turn=3.5))
    assert duel.comparison.answer == "NOT_COMPARABLE"
    assert isinstance(duel.comparison.ratio, Missing)
    assert duel.comparison.reasons[0].code == "not_metered"
    assert "a turn had 8 updates of plug (external), and it takes 20" in duel.comparison.sentence


def test_a_slow_sensor_needs_longer_turns():
    """A turn of eleven seconds is long enough for readings twice a second, and not for one each second."""
    assert fought(pair_of(1, 50.0, 40.0)).comparison.answer == "undecided"  # of one pair
    assert "a turn had 12 updates" in fought(pair_of(1, 50.0, 40.0, hertz=1.0)).comparison.sentence


def test_without_a_meter():
    assert "no telemetry" in fought(pair_of(1, 50.0, 40.0, metered=False)).comparison.sentence
