"""Printed facts of models and accelerators, and what follows from them."""
