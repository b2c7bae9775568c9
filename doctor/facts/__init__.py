"""What is known of a machine: one module a noun, each with its frozen data and its probe."""
