"""How whoever leads a run talks to its nodes: over ssh's or srun's own streams, or over an authenticated connection."""
