"""Read a network from a file or a module, and find out which part of its input a block needs.

Known layers are trimmed and fused; a network with unknown layers runs as it is. Volumes and blocks belong outside.
"""
