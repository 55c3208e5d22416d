"""Rigdyno measures what deep learning costs on a rig, with error bars and a verdict.

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
    """`import rigdyno` costs nothing until something of it is used."""
    if name not in __all__:
        raise AttributeError(f"module 'rigdyno' has no attribute '{name}'")
    return getattr(importlib.import_module("rigdyno.api"), name)
