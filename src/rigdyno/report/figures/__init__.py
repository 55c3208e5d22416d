"""How figures are drawn: one file for each kind, found by its name.

Each has a function `chart(figure)` that gives an Altair chart. Files with a leading underscore are what they share.
"""
