"""Files of measured runs, as a `Result`."""
