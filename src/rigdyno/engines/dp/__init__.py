"""Differentially private training: clipping per sample, noise, accounting, and an auditor for any engine.

A library of its own: it imports nothing else of Rigdyno. docs/dp.md shows how to move over from Opacus.
"""

from rigdyno.engines.dp.accounting import Epsilon, Spent, epsilon, noise_multiplier_for
from rigdyno.engines.dp.audit import Audit, AuditTask, audit
from rigdyno.engines.dp.engine import PrivacyEngine
from rigdyno.engines.dp.errors import BadSetting, MissingExtra, MixesSamples, NotFinite, PrivacyError, Unprotected
from rigdyno.engines.dp.examine import validate
from rigdyno.engines.dp.fixing import fix, replace_batch_norm
from rigdyno.engines.dp.ledger import Ledger
from rigdyno.engines.dp.sampling import GivenBatches, PoissonLoader, micro_batches, private_loader

__all__ = [
    "Audit",
    "AuditTask",
    "BadSetting",
    "Epsilon",
    "GivenBatches",
    "Ledger",
    "MissingExtra",
    "MixesSamples",
    "NotFinite",
    "PoissonLoader",
    "PrivacyEngine",
    "PrivacyError",
    "Spent",
    "Unprotected",
    "audit",
    "epsilon",
    "fix",
    "micro_batches",
    "noise_multiplier_for",
    "private_loader",
    "replace_batch_norm",
    "validate",
]
