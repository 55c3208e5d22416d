"""Helpers that know nothing about benchmarks: errors, units, clocks, files, processes, TOML.

Every other folder may import this one, the engines too, and it imports nothing else of Rigdyno.
"""
