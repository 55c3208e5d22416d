"""Rigdyno measures what deep learning costs on a rig: time, memory, energy, privacy."""

from __future__ import annotations

__version__ = "0.1.0"
