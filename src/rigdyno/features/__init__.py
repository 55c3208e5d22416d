"""Each folder is what one verb needs beyond the core: its planning, its analysis and its report together.

Features import neither each other nor suites. What the core needs of one is handed in by api.py.
"""
