"""The engine's loops as a reader would write them: plain Python, one step at a time."""
