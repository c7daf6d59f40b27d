"""What a page of the book hands to its text, and what its text claims: each under a name.

A page's words are edited and translated; its cells stay. So a sentence takes its numbers from a hidden cell (`put`),
and where it can't, in an alternative text or in words such as "twice" or "never turns down", a hidden cell beside it
checks what it says (`claim`). A claim that doesn't hold stops the page, and with it the build, and says its name.

Both are stored as MyST-NB stores what is glued: under a name that is unique in the book. Nothing is shown where the
cell stands. The names start with the page's own: `put("best", 17)` on `Page("ch01")` is ``{glue:text}`ch01-best` ``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SLACK = 1e-9  # relative: 0.125 is shown as 0.13 or 0.12, and neither is wrong


@dataclass(frozen=True)
class Page:
    """One page of the book.

    Parameters
    ----------
    name : str
        What its names start with, such as ``ch01``.

    Examples
    --------
    >>> page = Page("ch01")
    >>> page.claim("limit", 1 / 0.02, "50")
    >>> page.claim("no-peak", all(B / (0.4 + 0.02 * B) < 50 for B in range(1, 1000)))
    >>> page.claim("limit", 1 / 0.03, "50")
    Traceback (most recent call last):
    AssertionError: ch01-limit: the page says 50, its cells say 33.3333
    """

    name: str

    def put(self, key: str, value: float | str, digits: int = 0) -> None:
        """Hand a number, or a word that depends on numbers, to the text.

        Parameters
        ----------
        key : str
            Its name on this page.
        value : float or str
            A text is handed on as it is. A number gets commas between thousands and a true minus sign.
        digits : int
            How many digits after the point.
        """
        _store(f"{self.name}-{key}", value if isinstance(value, str) else f"{value:,.{digits}f}".replace("-", "−"))

    def claim(
        self, key: str, found: float | Sequence[float] | np.ndarray, says: str = "", *, within: float | None = None
    ) -> None:
        """Check what the text says in its own words, and record it.

        Parameters
        ----------
        key : str
            Its name on this page.
        found : bool, float or sequence of floats
            What the cells found: a condition that must hold, or, with `says`, numbers.
        says : str
            The numbers as the text shows them, with blanks between them: ``"65,000 3.8"``. They are digits, so a
            translation keeps them.
        within : float, optional
            How far what is found may be from what is shown. Without it each must round to the digits shown.

        Raises
        ------
        AssertionError
            The claim doesn't hold.
        ValueError
            `found` is neither a condition nor as many numbers as `says` has.
        """
        name = f"{self.name}-{key}"
        if not says:
            if within is not None or not isinstance(found, bool | np.bool_):
                raise ValueError(f"{name}: found must be True or False where no numbers are shown, got {found!r}")
            if not found:
                raise AssertionError(f"{name} doesn't hold")
            _store(name, json.dumps({"holds": True}))
            return
        shown, values = says.split(), np.ravel(np.asarray(found, dtype=float)).tolist()
        if len(values) != len(shown):
            raise ValueError(f"{name}: found must have a number for each of {says!r}, got {values}")
        for text, value in zip(shown, values, strict=True):
            digits = len(text.partition(".")[2])
            allowed = 0.5 * 10**-digits if within is None else within
            if not abs(value - float(text.replace(",", ""))) <= allowed + _SLACK * abs(value):
                raise AssertionError(f"{name}: the page says {text}, its cells say {value:,.{digits + 4}f}")
        _store(name, json.dumps({"says": shown, "found": values}))


def _store(name: str, text: str) -> None:
    """Glue a text, if this is a notebook. MyST-NB warns of a name that is used twice."""
    from IPython.core.interactiveshell import InteractiveShell

    if InteractiveShell.initialized():
        from myst_nb import glue

        glue(name, text, display=False)
