"""Start the participants of a cell on one or more nodes, and talk to other nodes.

Several launchers share it. Nodes talk over the streams of ssh or srun, or over an authenticated connection.
"""
