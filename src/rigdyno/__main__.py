"""Run the command line: `python -m rigdyno`."""

from __future__ import annotations

import sys

from rigdyno.cli import main

if __name__ == "__main__":
    sys.exit(main())
