"""Trains networks that tell neighbouring cells apart: affinities of labels, patches, augmentation, synthetic volumes.

A library of its own: of Rigdyno it imports the blockwise engine alone, whose volumes and networks it uses.
"""
