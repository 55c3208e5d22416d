"""A 3D network over a volume of any size, block by block; each voxel is written once, and nothing is lost by a crash.

A library of its own: it imports nothing else of Rigdyno. docs/infer.md shows how to use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rigdyno.engines.blockwise.errors import (
    BadNetwork,
    BadOutput,
    BadRegion,
    BadSetting,
    BadVolume,
    BlockwiseError,
    MissingExtra,
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
_ELSEWHERE = {"Done": "inference", "Inference": "inference", "Job": "inference", "Plan": "planning"}


def __getattr__(name: str) -> Any:
    """Workers that only keep count of blocks, and volumes without a network, do without torch."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
