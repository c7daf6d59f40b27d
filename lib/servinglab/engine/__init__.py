"""The engine: time passes, requests are served.

`protocol` says what every engine can be asked. `reference` has the loops as one would write them, `kernel` the same,
compiled; `simulate` serves a whole workload with the fastest engine that knows its rules.
"""
