"""Counting tokens on the client's side, for servers that don't say how many there were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servinglab.measure.load_test.stream import TokenEnds


def token_ends(path: str | Path) -> TokenEnds:
    """A model's tokenizer, as what says where each token of a text ends.

    Parameters
    ----------
    path : str or Path
        A ``tokenizer.json``, or the folder of a model that holds one.

    Raises
    ------
    ImportError
        If the package tokenizers isn't installed.
    ValueError
        If the file isn't a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ImportError("counting with a tokenizer needs: pip install tokenizers") from None
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise ValueError(f"tokenizer must be a tokenizer.json or a folder that holds one; got {str(path)!r}")
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"{file} isn't a tokenizer: {error}") from None

    def ends(text: str) -> Sequence[int]:
        return [end for _, end in made.encode(text, add_special_tokens=False).offsets]

    return ends
