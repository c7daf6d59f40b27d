"""Which setting keeps a promise?"""

from __future__ import annotations

from servinglab.decide.answer import BestBatch, Candidate, Remedy
from servinglab.decide.evaluate import KINDS, PREFERENCES
from servinglab.decide.formulas import BatchFormula, formula_batch, gathering_batch
from servinglab.decide.search import SearchInterrupted, best_batch

__all__ = [
    "KINDS",
    "PREFERENCES",
    "BatchFormula",
    "BestBatch",
    "Candidate",
    "Remedy",
    "SearchInterrupted",
    "best_batch",
    "formula_batch",
    "gathering_batch",
]
