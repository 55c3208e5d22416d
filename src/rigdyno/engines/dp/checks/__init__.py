"""What is checked about samples by running the network: where they are, and that none depends on another."""
