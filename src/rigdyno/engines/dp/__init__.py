"""Differentially private training: per-sample clipping, noise, privacy accounting, and an auditor for any engine.

This is an independent library that imports nothing else of Rigdyno. docs/dp.md shows how to move over from Opacus.
"""

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.dp.accounting import Epsilon, Spent, epsilon, noise_multiplier_for
from rigdyno.engines.dp.audit import Audit, AuditTask, audit
from rigdyno.engines.dp.batches.sampling import GivenBatches, PoissonLoader, micro_batches, private_loader
from rigdyno.engines.dp.checks.validate import fix, replace_batch_norm, validate
from rigdyno.engines.dp.engine import PrivacyEngine
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, NotFinite, PrivacyError, Unprotected
from rigdyno.engines.dp.ledger import Ledger

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
