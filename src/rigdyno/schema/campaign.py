"""Several suites as one undertaking: which runs belong together, and which suites had no part in it."""

from __future__ import annotations

from typing import Annotated

import msgspec

CAMPAIGN_VERSION = 1

RunName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]  # a folder beside the file


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    suite: str
    run: RunName
    seconds: float  # its share of the budget


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    suite: str
    reason: str


class CampaignHead(msgspec.Struct, frozen=True, kw_only=True):
    """The file that makes a folder of runs a campaign. All else is in the runs."""

    campaign_version: int = CAMPAIGN_VERSION
    rigdyno_version: str
    created_at: str
    label: str | None = None
    rig: str  # in one line
    budget_seconds: float
    runs: tuple[SuiteRun, ...]
    left_out: tuple[LeftOut, ...] = ()
