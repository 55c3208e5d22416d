"""How well predicted affinities agree with those of the labels, box by box, for volumes of any size."""

from __future__ import annotations

from math import prod

import torch

from rigdyno.engines.blockwise.boxes import Box, Zyx, whole
from rigdyno.engines.blockwise.errors import BadVolume
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.volumes._messages import LABEL_DTYPES
from rigdyno.engines.blockwise.volumes.opening import open_volume
from rigdyno.engines.segmentation.affinities import AXES, Background, Tally, targets_of

PIECE: Zyx = (32, 256, 256)
HALF = 127.5  # of what is stored as uint8


def affinity_accuracy(
    output: str, labels: str, part: Box | None = None, background: Background = "ignored"
) -> float | None:
    """The balanced accuracy of what `rigdyno infer` wrote, in a part of the volume: chance gives one half. None: the
    labels there have one kind of pair alone."""
    said, truth = open_volume(output), open_volume(labels, dtypes=LABEL_DTYPES)
    if said.shape != truth.shape or said.channels != AXES:
        shapes = f"{said.channels} x {said.shape} and {truth.shape}"
        raise BadVolume(f"{output} and {labels} don't belong together: their shapes are {shapes}")
    area = (part or whole(truth.shape)).within(whole(truth.shape))
    if not prod(area.shape):
        raise BadVolume(f"the part {part} doesn't lie in {labels}")
    tally, threshold = Tally(), HALF if said.dtype.kind == "u" else 0.5
    for piece in Grid(area.shape, PIECE):
        box = piece.moved(area.start)
        answers = torch.from_numpy(said.read(box).values.astype("float32")) > threshold
        tally.add(answers.float(), targets_of(truth.read(box).values[0], background))
    return tally.balanced
