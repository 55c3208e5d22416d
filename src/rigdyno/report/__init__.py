"""Turn figures into one view, and render it; view.py has the function that every run's view comes from.

Nothing is measured here, and statistics belong in analyse/. What only one suite or verb shows belongs in its folder.
"""
