"""Refuse networks and inputs for which the privacy guarantee wouldn't hold.

The checks find the axis of the samples, and make sure that no sample depends on another, by running the network.
"""
