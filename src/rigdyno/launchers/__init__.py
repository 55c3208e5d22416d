"""Each file is one way to start the processes of a cell: here, over ssh, under Slurm, by hand.

What the processes then do belongs in arrangements/ and runner/.
"""
