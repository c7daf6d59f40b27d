"""Types of the arrays that the library passes around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    pass


Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
