"""Hold what several layer rules share, and the generic rule for any other module. A file here has no `Rule`."""
