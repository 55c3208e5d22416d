"""Hold what several workloads share, and the user's own FILE.py:FUNCTION. A file here is no workload of the list."""
