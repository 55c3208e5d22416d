"""Hold what probes share: the set of all probes, read safely, and the CPU time of workers. No probe is here."""
