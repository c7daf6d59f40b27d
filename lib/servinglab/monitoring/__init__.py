"""What a team sees of a running service, and what wakes it.

- `promql`: quantiles of histograms, rates and increases of counters, as Prometheus computes them.
- `alarms`: how often an alarm on a percentile is wrong, and how late it comes.
- `burn_rate`: how fast a service spends its error budget, and rules on that.
"""
