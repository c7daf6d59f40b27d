"""Load tests, real engines, other tools' files."""
