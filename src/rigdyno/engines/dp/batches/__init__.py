"""Draw batches, and keep track of those that no step has used yet.

Each drawn batch is good for one step. Gradients belong in gradients/, and what a step costs in ledger.py.
"""
