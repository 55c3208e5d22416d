"""Each folder is one published benchmark: its cells, tables, figures and sentences. quick.py shortens `device`.

Suites import neither each other nor features; what two of them need is core.
"""
