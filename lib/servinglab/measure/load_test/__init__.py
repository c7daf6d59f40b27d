"""A load test of a live server: planned, sent, timed, reported."""
