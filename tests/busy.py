"""Run a command next to two busy loops and one memory-bandwidth loop: `python tests/busy.py COMMAND ...`."""

import subprocess
import sys

SPIN = "while True: pass"
COPY = """
import numpy

source = numpy.ones(2**24)
target = numpy.empty_like(source)
while True:
    target[:] = source
"""


def main() -> int:
    loops = [subprocess.Popen([sys.executable, "-c", code]) for code in (SPIN, SPIN, COPY)]
    try:
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
