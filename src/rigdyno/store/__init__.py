"""Keep runs and campaigns in folders, append-only, and find them again.

What is in a folder is described in schema/layout.py. Whatever the files mean belongs in analyse/.
"""
