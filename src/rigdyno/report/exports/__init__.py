"""Each file writes runs for one other tool, with a function `write(runs, path)`.

What several exports read belongs in report/export_data.py: listing exports must not import numpy.
"""
