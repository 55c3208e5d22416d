"""`rigdyno doctor` and `rigdyno selftest`: what this machine can measure, and a short trial of every path.

What the machine is, and the traps themselves, belong in rig/.
"""
