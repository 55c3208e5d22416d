"""Find out what this machine is: system, processor, devices, environment, and traps that would spoil a run.

What could crash is tried in a child process. Readings over time belong in probes/.
"""
