"""The device that is probably the best here, for a listing that must answer at once."""

from __future__ import annotations

import platform
import sys
from pathlib import Path


def likely_device(root: Path = Path("/")) -> str:
    """A guess without torch: by the driver's device files."""
    if (root / "dev/nvidia0").exists() or (root / "dev/kfd").exists():
        return "cuda"
    return "mps" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"
