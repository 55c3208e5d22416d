"""Check that another Python environment has the same Rigdyno.

The two arms of a duel must differ in what is asked about, not in what measures it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

from rigdyno.base.errors import UsageError

_ASK = "from rigdyno.features.duel.same_version import fingerprint; print(fingerprint())"

SECONDS = 60.0  # timeout: an interpreter on a network disk may start slowly


def fingerprint() -> str:
    """Return a hash of all code of this package."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def require_same_rigdyno(python: str) -> None:
    theirs = _fingerprint_of(python)
    if theirs != fingerprint():
        raise UsageError(f"{python} has another Rigdyno than this one; install the same in both environments")


def _fingerprint_of(python: str) -> str:
    try:
        asked = subprocess.run(
            [python, "-c", _ASK],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python} gave no answer within {SECONDS:.0f} s; is it a Python interpreter?") from None
    except OSError as error:
        raise UsageError(f"can't start '{python}': {(error.strerror or str(error)).lower()}") from None
    if asked.returncode != 0:
        raise UsageError(f"{python} has no Rigdyno, or an older one; install the same in both environments")
    answer = asked.stdout.strip()
    if not re.fullmatch("[0-9a-f]{32}", answer):
        raise UsageError(f"{python} gave an answer that makes no sense; is it a Python interpreter?")
    return answer
