"""Turn a request into cells: expand, refuse with a reason, fit into the time and the memory.

Nothing is measured or written here. Planning of one verb alone belongs in its folder in features/.
"""
