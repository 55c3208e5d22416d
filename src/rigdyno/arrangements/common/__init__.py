"""Hold what several arrangements share: the measured loops. A file here is no arrangement of its own."""
