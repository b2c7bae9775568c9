"""The streaming runtime: files of a checkpoint, memory ledger, expert store, tokenizer, sampling and generation."""
