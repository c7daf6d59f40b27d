"""From measurements a step time, and predictions to hold against what was measured."""
