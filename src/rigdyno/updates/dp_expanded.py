"""Private training by expanded weights: the idea of BastionLab's engine, whose server can't be had any more.

That engine averaged before it clipped, and claimed an epsilon far below the true one. Here clipping, noise,
sampling and accounting are those of our own engine; only the way to gradients of each sample is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rigdyno.updates._engine import EngineUpdate

if TYPE_CHECKING:
    from rigdyno.engines.dp import PrivacyEngine


@dataclass(frozen=True, kw_only=True)
class DpExpanded(EngineUpdate):
    """Differentially private training by expanded weights."""

    def engine(self) -> PrivacyEngine:
        from rigdyno.engines.dp import PrivacyEngine

        return PrivacyEngine(expanded=True, ledger=self.ledger or None)
