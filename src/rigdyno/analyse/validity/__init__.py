"""Judge figures as VALID, SUSPECT or INVALID, by one table of rules, each with a reason.

Every threshold is in thresholds.py. Rules only read evidence: they neither measure nor change a figure.
"""
