"""Knows nothing of serving: checks, arrays, text, files, the event loop."""
