"""Train networks that separate neighbouring cells: affinities of labels, patches, augmentation, synthetic volumes.

Of Rigdyno this library imports only the blockwise engine, whose volumes and networks it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rigdyno.engines.blockwise.boxes import Box
    from rigdyno.engines.segmentation.scoring import affinity_accuracy
    from rigdyno.engines.segmentation.synthetic import write_synthetic

__all__ = ["Box", "affinity_accuracy", "write_synthetic"]

_LAZY = {
    "Box": "rigdyno.engines.blockwise.boxes",
    "affinity_accuracy": f"{__name__}.scoring",
    "write_synthetic": f"{__name__}.synthetic",
}


def __getattr__(name: str) -> Any:
    """Import on first use: loader processes and synthetic volumes don't need the readers."""
    if name not in _LAZY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)
