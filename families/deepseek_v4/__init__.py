"""DeepSeek V4: Flash, Pro, their base models and the 0731 revision."""
