"""A machine in a file: its facts, what its tools said, without what tells whose it is."""
