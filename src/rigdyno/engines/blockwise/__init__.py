"""Run a 3D network over a volume of any size, block by block.

Each voxel is written once, and finished blocks survive a crash. This library imports nothing else of Rigdyno but
`rigdyno.base`. docs/infer.md shows how to use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise.errors import (
    BadNetwork,
    BadOutput,
    BadRegion,
    BadSetting,
    BadVolume,
    BlockwiseError,
    TooLittleMemory,
    WontResume,
)

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.inference import Done, Inference, Job
    from rigdyno.engines.blockwise.planning import Plan

__all__ = [
    "BadNetwork",
    "BadOutput",
    "BadRegion",
    "BadSetting",
    "BadVolume",
    "BlockwiseError",
    "Done",
    "Inference",
    "Job",
    "MissingExtra",
    "Plan",
    "TooLittleMemory",
    "WontResume",
]

_LAZY = {"Done": "inference", "Inference": "inference", "Job": "inference", "Plan": "planning"}


def __getattr__(name: str) -> Any:
    """Import on first use: workers that only count blocks, and volumes without a network, don't need torch."""
    if name not in _LAZY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
