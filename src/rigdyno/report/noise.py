"""Describe the noise floor of the machine in a report."""

from __future__ import annotations

from rigdyno.analyse.pairs import meaningless_below
from rigdyno.base.units import show_percent
from rigdyno.schema.comparison import Duel
from rigdyno.schema.estimate import Number
from rigdyno.schema.view import Sentence


def describe_noise(duel: Duel | None, missing: str | None) -> Sentence | None:
    """Say how large the noise floor of the machine is, or why it was not measured; None if it wasn't asked for."""
    if duel is None:
        return _say_not_measured(missing) if missing else None
    bound = meaningless_below(duel)
    if bound is None:
        only = f"only {len(duel.pairs)} of its pairs of processes finished"
        if not duel.pairs and not duel.lost:
            only = "there was no time left for it"
        return _say_not_measured("; ".join((*duel.lost, only)))
    subject = f"{duel.comparison.baseline} against itself, {len(duel.pairs)} pairs of processes"
    text = f"{subject}: differences below {show_percent(bound)} are within the noise of this machine."
    return Sentence(text=text, figure=Number(value=bound, unit="share"))


def _say_not_measured(reason: str) -> Sentence:
    return Sentence(text=f"The machine's own noise was not measured: {reason}.")
