"""`rigdyno infer`: run a network over a volume with the blockwise engine, keep a record, and report.

How blocks are read, computed and written belongs in engines/blockwise/.
"""
