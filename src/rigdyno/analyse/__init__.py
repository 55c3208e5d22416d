"""Turn stored samples into figures: steady state, statistics, energy, phases, intervals and verdicts.

The functions are pure: they measure nothing, write nothing and import no framework. Tables belong in report/.
"""
