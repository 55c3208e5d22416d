"""`rigdyno plan-privacy`: noise for an epsilon, epsilon over the epochs, and the time it takes here.

The accountants belong in engines/dp/accounting.py.
"""
