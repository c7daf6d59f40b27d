"""Small changes of right answers, and whether the checks of the assignments notice them: `make mutants`."""
