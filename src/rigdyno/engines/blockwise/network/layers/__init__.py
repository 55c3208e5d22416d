"""Each file is one kind of layer: how much input it needs for a part of its output, and how it computes that part.

The order of layers belongs in graph.py, and the translation from torch's operators in operators.py.
"""
