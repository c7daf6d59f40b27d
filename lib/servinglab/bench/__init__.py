"""Measured runs: a load generator for OpenAI-compatible servers, and readers of other tools' result files.

`servinglab bench http URL` is the command. From Python, `run.run_load_test` sends a plan, `report.read_load_test` and
`report.make_report` say what came of it, and `servinglab.read_run` gives the `Result` of any of these files.
"""
