"""Which public data is here, and where do its owners publish the rest?

Nothing is downloaded or copied: the variable SERVINGLAB_DATA names a folder, and the traces lie in its `traces/`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_AZURE = "https://github.com/Azure/AzurePublicDataset"
_MOONCAKE = "https://github.com/kvcache-ai/Mooncake"


@dataclass(frozen=True)
class PublicTrace:
    """A trace that `servinglab.read_trace` reads.

    Attributes
    ----------
    file : str
        Its name in the folder `traces/`.
    holds : str
        What it is.
    url : str
        Where its owners publish it.
    licence : str
        What they allow.
    """

    file: str
    holds: str
    url: str
    licence: str


TRACES = (
    PublicTrace(
        "AzureLLMInferenceTrace_conv.csv",
        "an hour of conversations, 2023: 19,366 requests",
        f"{_AZURE}/raw/master/data/AzureLLMInferenceTrace_conv.csv",
        "CC BY 4.0",
    ),
    PublicTrace(
        "AzureLLMInferenceTrace_code.csv",
        "an hour of code completion, 2023: 8,819 requests",
        f"{_AZURE}/raw/master/data/AzureLLMInferenceTrace_code.csv",
        "CC BY 4.0",
    ),
    PublicTrace(
        "mooncake_conversation_trace.jsonl",
        "an hour of conversations: 12,031 requests, with shared prefixes",
        f"{_MOONCAKE}/raw/main/FAST25-release/traces/conversation_trace.jsonl",
        "Apache 2.0",
    ),
    PublicTrace(
        "mooncake_synthetic_trace.jsonl",
        "a mix of public data sets: 3,993 requests, with shared prefixes",
        f"{_MOONCAKE}/raw/main/FAST25-release/traces/synthetic_trace.jsonl",
        "Apache 2.0",
    ),
)


def data_folder() -> Path | None:
    """The folder that SERVINGLAB_DATA names, or None where the variable isn't set.

    Raises
    ------
    ValueError
        If the variable names something that isn't a folder.
    """
    setting = os.environ.get("SERVINGLAB_DATA", "")
    if not setting:
        return None
    if not Path(setting).is_dir():
        raise ValueError(f"SERVINGLAB_DATA must name a folder; got {setting!r}")
    return Path(setting)


def find_trace(name: str) -> Path:
    """The file `name`, or the one of that name among the public traces in SERVINGLAB_DATA.

    Parameters
    ----------
    name : str
        A path, or the name of a file in the folder `traces/` of SERVINGLAB_DATA.

    Raises
    ------
    FileNotFoundError
        If there is neither.
    """
    if Path(name).exists():
        return Path(name)
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError(f"no file {name}, and SERVINGLAB_DATA isn't set; see `servinglab data`")
    if not (folder / "traces" / name).exists():
        raise FileNotFoundError(f"no file {name}, here or in {folder / 'traces'}; see `servinglab data`")
    return folder / "traces" / name


def report() -> str:
    """What of the public traces is here, and where to get the rest, as text.

    Examples
    --------
    >>> "https://github.com/Azure/AzurePublicDataset" in report()
    True
    """
    folder = data_folder()
    if folder is None:
        lines = ["SERVINGLAB_DATA isn't set: let it name a folder, and put traces into its traces/"]
    else:
        lines = [f"SERVINGLAB_DATA is {folder}"]
    for trace in TRACES:
        file = folder / "traces" / trace.file if folder else None
        here = f"here, {file.stat().st_size / 1e6:.1f} MB" if file and file.is_file() else "not here"
        lines += ["", f"traces/{trace.file}: {here}", f"    {trace.holds}", f"    {trace.licence}, {trace.url}"]
    lines += ["", f"Further traces in these formats: {_AZURE}, {_MOONCAKE}"]
    return "\n".join(lines)
