"""What happened: one row a request, a log of segments; saved, compared."""
