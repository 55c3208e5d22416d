"""Hold what the private updates share: options, batches and the step. A file here is no update."""
