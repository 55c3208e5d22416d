"""The frozen data types that folders hand to each other and that are stored: spec, samples, record, view.

They have small methods only: nothing here measures, imports a framework, or reads files other than row files.
"""
