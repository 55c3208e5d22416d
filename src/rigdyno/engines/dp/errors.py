"""What the private engine refuses, and why.

PrivacyError
├── BadSetting       a figure that makes no sense: sigma, the bound, delta, a rate, a file
├── MixesSamples     a layer whose answer for one sample depends on the others
├── Unprotected      a gradient that the bound doesn't cover
├── NotFinite        NaN or infinity where a norm is needed
└── MissingExtra     a package that this needs and that isn't installed
"""

from __future__ import annotations


class PrivacyError(ValueError):
    """One line that says what, where, and what to try."""


class BadSetting(PrivacyError):
    pass


class MixesSamples(PrivacyError):
    pass


class Unprotected(PrivacyError):
    pass


class NotFinite(PrivacyError):
    pass


class MissingExtra(PrivacyError):
    pass
