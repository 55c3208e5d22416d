"""The events that bets are made on: a canary's score is above a threshold, or at most at it.

The thresholds are fixed by the scores of the first runs, on which nothing is bet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rigdyno.engines.dp.audit.betting import Counts
from rigdyno.engines.dp.audit.runs import Run
from rigdyno.engines.dp.audit.watch import Floats

QUANTILES = np.array([0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 0.99])
BETWEEN = np.linspace(0, 1, 9)[1:-1]  # of the range of scores: where there is no noise, quantiles may all be extremes


class Events:
    """All thresholds of all traces; first the events above them, then those at most at them."""

    def __init__(self, names: Sequence[str], first_runs: Sequence[Run]) -> None:
        scores = np.concatenate([run.scores for run in first_runs], axis=1)
        low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
        self._names = list(names)
        self._thresholds: Floats = np.concatenate(
            (np.quantile(scores, QUANTILES, axis=1).T, low + (high - low) * BETWEEN), axis=1
        )

    def counts(self, run: Run) -> Counts:
        above = run.scores[:, :, None] > self._thresholds[:, None, :]
        is_in = run.included[None, :, None]
        canaries = len(run.included)
        in_above, in_below = ((is_in & each).sum(1).ravel() / canaries for each in (above, ~above))
        out_above, out_below = ((~is_in & each).sum(1).ravel() / canaries for each in (above, ~above))
        return Counts(np.concatenate((in_above, out_below)), np.concatenate((out_above, in_below)))

    def seen(self, event: int, run: Run) -> tuple[int, int, int, int]:
        """How many canaries that were in showed it, of how many, and the same of those that were out."""
        trace, threshold, below = self._at(event)
        shows = (run.scores[trace] > threshold) ^ below
        return (
            int((shows & run.included).sum()),
            int(run.included.sum()),
            int((shows & ~run.included).sum()),
            int((~run.included).sum()),
        )

    def name(self, event: int) -> str:
        trace, threshold, below = self._at(event)
        return f"{self._names[trace]} is {'at most' if below else 'above'} {threshold:.4g}"

    def _at(self, event: int) -> tuple[int, float, bool]:
        below, place = divmod(event, self._thresholds.size)
        trace, threshold = divmod(place, self._thresholds.shape[1])
        return trace, float(self._thresholds[trace, threshold]), bool(below)
