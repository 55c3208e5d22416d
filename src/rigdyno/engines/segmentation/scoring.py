"""Score predicted affinities against those of the labels, box by box, for volumes of any size."""

from __future__ import annotations

from math import prod

import torch

from rigdyno.engines.blockwise.boxes import Box, Grid, Zyx, whole_box
from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.volumes.messages import LABEL_DTYPES
from rigdyno.engines.blockwise.volumes.reading import open_volume
from rigdyno.engines.segmentation.affinities import AXES, AccuracyTally, Background, make_targets

PIECE: Zyx = (32, 256, 256)

HALF = 127.5  # threshold for affinities that are stored as uint8


def affinity_accuracy(
    output: str, labels: str, part: Box | None = None, background: Background = "ignored"
) -> float | None:
    """Return the balanced accuracy of an output of `rigdyno infer` in a part of the volume; chance gives one half.

    None if the labels there have only one kind of pair.
    """
    predicted, truth = open_volume(output), open_volume(labels, dtypes=LABEL_DTYPES)
    if predicted.shape != truth.shape or predicted.channels != AXES:
        shapes = f"{predicted.channels} x {predicted.shape} and {truth.shape}"
        raise BadVolume(f"{output} and {labels} don't belong together: their shapes are {shapes}")
    area = (part or whole_box(truth.shape)).within(whole_box(truth.shape))
    if not prod(area.shape):
        raise BadVolume(f"the part {part} isn't inside {labels}")
    tally, threshold = AccuracyTally(), HALF if predicted.dtype.kind == "u" else 0.5
    for piece in Grid(area.shape, PIECE):
        box = piece.moved(area.start)
        answers = torch.from_numpy(predicted.read(box).values.astype("float32")) > threshold
        tally.add(answers.float(), make_targets(truth.read(box).values[0], background))
    return tally.balanced
