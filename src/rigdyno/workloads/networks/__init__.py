"""Hold the networks that workloads train or run. Which data they see and how they are timed belongs elsewhere."""
