"""The streaming runtime: checkpoint, ledger, expert store, generation. Import the modules, not the package."""
