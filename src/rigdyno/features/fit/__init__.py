"""`rigdyno fit`, and options set to `largest`: search the largest batch that fits into a memory.

The worker's part, a fixed batch, belongs in runner/fixed_batch.py: nothing can be handed to another process.
"""
