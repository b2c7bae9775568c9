"""Pure functions from facts to findings, in a graph of what needs what."""
