"""Private training with Rigdyno's own engine, rigdyno.engines.dp; see docs/dp.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rigdyno.updates.common.private import EngineUpdate

if TYPE_CHECKING:
    from rigdyno.engines.dp import PrivacyEngine


@dataclass(frozen=True, kw_only=True)
class DpFast(EngineUpdate):
    """Differentially private training by Rigdyno's own engine."""

    start_seconds: ClassVar[float] = 4.0

    secure: bool = False  # noise and sampling from the system's cryptographic generator; runs aren't reproducible

    def make_engine(self) -> PrivacyEngine:
        from rigdyno.engines.dp import PrivacyEngine

        return PrivacyEngine(secure=self.secure, ledger=self.ledger or None)
