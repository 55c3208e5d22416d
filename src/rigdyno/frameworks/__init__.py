"""Each file is all that Rigdyno knows of one framework while it measures: devices, memory, events, seeds.

The worker asks it and names none of them. Networks and training steps belong in workloads/ and updates/.
"""
