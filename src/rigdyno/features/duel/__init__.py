"""`rigdyno duel` and `rigdyno compare`: plan two arms, compare two stored runs, and show the answer.

Running pairs of processes and judging them is core (runner/pairs/, analyse/pairs.py): suites measure noise with them.
"""
