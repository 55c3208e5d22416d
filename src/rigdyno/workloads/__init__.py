"""Each file is one workload: what is measured, with its options as fields; the file's name is its name.

How it is shared between processes belongs in arrangements/, how it is timed in runner/.
"""
