"""Compute, clip and sum per-sample gradients, without knowing which layer they come from.

Rules for kinds of layers belong in layers/, compiled loops in kernels/.
"""
