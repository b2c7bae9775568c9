"""Findings and facts for people and for programs."""
