"""Rigdyno measures what deep learning costs on a machine, with confidence intervals and a verdict.

import rigdyno

with rigdyno.measure("my training", unit="image") as meter:
    for batch in loader:
        train(batch)
        meter.step(items=len(batch))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rigdyno.api import Run, duel, load, measure, run

__version__ = "0.1.0"

__all__ = ["Run", "__version__", "duel", "load", "measure", "run"]


def __getattr__(name: str) -> Any:
    """Import `rigdyno.api` on first use, so that `import rigdyno` alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'rigdyno' has no attribute '{name}'")
    return getattr(importlib.import_module("rigdyno.api"), name)
