"""The errors of the private engine.

PrivacyError
├── BadSetting       an invalid setting: noise multiplier, clipping norm, delta, sample rate, or file
├── MixesSamples     a layer whose output for one sample depends on other samples
├── Unprotected      a gradient that isn't clipped
└── NotFinite        NaN or infinity where a norm is needed

If a package that is needed isn't installed, rigdyno.base.errors.MissingExtra is raised, which is a ValueError too.
"""

from __future__ import annotations


class PrivacyError(ValueError):
    """Base class. The message is one line: what happened, where, and what to try."""


class BadSetting(PrivacyError):
    pass


class MixesSamples(PrivacyError):
    pass


class Unprotected(PrivacyError):
    pass


class NotFinite(PrivacyError):
    pass
