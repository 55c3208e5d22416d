"""Private training with expanded weights, the method of BastionLab's engine, whose server is no longer available.

That engine averaged gradients before clipping them, and claimed an epsilon far below the true one. Here clipping,
noise, sampling and accounting are those of Rigdyno's engine; only per-sample gradients are computed BastionLab's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rigdyno.updates.common.private import EngineUpdate

if TYPE_CHECKING:
    from rigdyno.engines.dp import PrivacyEngine


@dataclass(frozen=True, kw_only=True)
class DpExpanded(EngineUpdate):
    """Differentially private training by expanded weights."""

    def make_engine(self) -> PrivacyEngine:
        from rigdyno.engines.dp import PrivacyEngine

        return PrivacyEngine(expanded=True, ledger=self.ledger or None)
