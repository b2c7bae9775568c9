"""Which bytes go into which tier, and how fast that will be."""
