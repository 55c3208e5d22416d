"""Run two processes that take turns, for `duel` and for the noise floor of every suite.

How pairs are judged belongs in analyse/pairs.py.
"""
