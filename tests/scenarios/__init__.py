"""Workflows that exist to be broken, and the means to break them at a named point."""
