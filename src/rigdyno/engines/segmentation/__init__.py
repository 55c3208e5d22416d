"""Trains networks that tell neighbouring cells apart: affinities of labels, patches, augmentation, synthetic volumes.

A library of its own: of Rigdyno it imports the blockwise engine alone, whose volumes and networks it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.engines.segmentation.scoring import affinity_accuracy
    from rigdyno.engines.segmentation.synthetic import write_synthetic

__all__ = ["Box", "affinity_accuracy", "write_synthetic"]
_ELSEWHERE = {
    "Box": "rigdyno.engines.blockwise.boxes",
    "affinity_accuracy": f"{__name__}.scoring",
    "write_synthetic": f"{__name__}.synthetic",
}


def __getattr__(name: str) -> Any:
    """Loader processes and synthetic volumes do without the readers of others."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)
