"""Hooks to real engines."""
