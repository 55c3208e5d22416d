"""Each file is one way in which participants share the work: one process, DDP, Horovod and others.

An arrangement runs the measured loop. How processes start belongs in launchers/, what a batch does in updates/.
"""
