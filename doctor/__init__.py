"""Facts about a machine, checks of them, and the plan of a budget."""
