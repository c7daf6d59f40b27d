"""A run in a file.

`save_run` writes one file: a NumPy archive with every column of a `Result` and a JSON text that says what was run. It
holds no pickled objects, so reading a stranger's file runs nothing, and any tool that knows NumPy's format can read it.
`read_saved_run` gives the `Result` back, equal in every column. Schedulers, step times, pools and catalogue rows of
this library come back as themselves; anything else (a step time of your own) as text, and then the result has no
`step_time`.

What isn't in the file: of the workload priorities, prefixes and pauses.
"""

from __future__ import annotations

import json
import math
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from servinglab.base.version import __version__
from servinglab.result.log import Segments
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.workload.outcomes import NEVER, Status
from servinglab.workload.request import OPTIONAL, check_optional, given

if TYPE_CHECKING:
    pass


FORMAT = "servinglab run"
FORMAT_VERSION = 3

_REQUESTS = (
    "arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "prompt_tokens", "output_tokens", "preemptions",
    "status",
)  # fmt: skip
_SEGMENTS = tuple(each.name for each in fields(Segments))
_LATE_GAPS = ("gap_ns", "tokens")
_KIND = "@"  # in the JSON text, the key that says what an object was


def save_run(result: Result, path: str | Path) -> None:
    """Write a run to one file, which `servinglab.read_run` reads.

    Parameters
    ----------
    result : Result
        Simulated or measured. Its setup may hold anything; what isn't plain or of this library becomes text.
    path : str or Path
        By custom it ends in ``.npz``. An older file is replaced.

    Raises
    ------
    OSError
        If the file can't be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import servinglab as sl
    >>> served = sl.simulate(sl.poisson(20, 100, seed=1), sl.StaticBatching(10), sl.AffineStep(0.4, 0.02))
    >>> path = pathlib.Path(tempfile.mkdtemp(), "static.npz")
    >>> save_run(served, path)
    >>> again = read_saved_run(path)
    >>> bool((again.finish_ns == served.finish_ns).all()), again.setup.scheduler.batch_size
    (True, 10)
    """
    step_time = _encode(result.step_time)
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "servinglab": __version__,
        "streaming": result.streaming,
        "pots": result.pots,
        "step_time": None if _is_text(step_time) else step_time,
        "setup": _encode(result.setup.told()),
        "rejections": [[int(number), reason] for number, reason in result.rejections.items()],
    }
    arrays = {f"requests.{name}": getattr(result, name) for name in _REQUESTS}
    arrays |= {f"optional.{name}": np.asarray(column) for name, column in given(result.optional).items()}
    if result.segments is not None:
        arrays |= {f"segments.{name}": getattr(result.segments, name) for name in _SEGMENTS}
    arrays |= {f"late_gaps.{name}": column for name, column in zip(_LATE_GAPS, result.late_gaps, strict=True)}
    arrays["about"] = np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)
    with open(path, "wb") as file:  # NumPy adds an ending to a name, not to a file
        np.savez_compressed(file, **arrays)


def read_saved_run(path: str | Path) -> Result:
    """Read a run that `save_run` wrote.

    Returns
    -------
    Result
        A file from another version of servinglab is read with a warning that names both.

    Raises
    ------
    ValueError
        If it isn't a saved run, is damaged, or was written in a format that this version doesn't know.
    OSError
        If it can't be read.
    """
    arrays = _arrays(path)
    try:
        about = json.loads(arrays["about"].tobytes())
        known = about["format"] == FORMAT
        written, version = str(about["servinglab"]), int(about["format_version"])
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(f"{path} isn't a saved run: it doesn't say that it is one")
    if version not in range(1, FORMAT_VERSION + 1):
        raise ValueError(
            f"{path} was saved by servinglab {written} in format {version}; servinglab {__version__} reads "
            f"formats 1 to {FORMAT_VERSION}"
        )
    if written != __version__:
        warnings.warn(f"{path} was saved by servinglab {written}; this is {__version__}", stacklevel=3)
    try:
        columns = _table(arrays, "requests", _REQUESTS)
        if columns["status"].size and columns["status"].max() >= len(Status):
            raise ValueError(f"it has a status {columns['status'].max()}")
        n = len(columns["status"])
        optional = {name: arrays.get(f"optional.{name}") for name in OPTIONAL}
        has_log = any(name.startswith("segments.") for name in arrays)
        if has_log and version < 3:
            arrays["segments.prefill_pairs"] = np.full_like(arrays["segments.prefill_tokens"], NEVER, np.int64)
        return Result(
            **columns,  # type: ignore[arg-type]
            segments=Segments(**_table(arrays, "segments", _SEGMENTS)) if has_log else None,
            streaming=bool(about["streaming"]),
            pots=about["pots"],
            step_time=_decode(about["step_time"]),
            setup=_setup(about),
            late_gaps=tuple(_table(arrays, "late_gaps", _LATE_GAPS).values()),  # type: ignore[arg-type]
            rejections={int(number): str(reason) for number, reason in about["rejections"]},
            **check_optional(n, **optional),  # type: ignore[arg-type]
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}, saved by servinglab {written}, can't be read by {__version__}: {what}") from None


def _setup(about: Mapping[str, Any]) -> RunSetup:
    """What was run. Format 1 had the same under other names, and a measured run's source as ``measured``."""
    told = _decode(about.get("setup") or about["description"])
    if "measured" in told:
        told["source"] = told.pop("measured")
    return RunSetup.of(told)


# Objects as JSON and back
def _kinds() -> dict[str, type]:
    """What comes back from a file as itself."""
    from servinglab.hardware.catalog import Accelerator, Model
    from servinglab.hardware.memory import KVCache, MeasuredOther
    from servinglab.hardware.roofline import Roofline
    from servinglab.scheduling.blocks import Blocks
    from servinglab.scheduling.schedulers import (
        ContinuousBatching,
        DynamicBatching,
        LengthBucketedBatching,
        StaticBatching,
    )
    from servinglab.step_time.affine import AffineStep, RoofStep

    kinds = (
        Accelerator, AffineStep, Blocks, ContinuousBatching, DynamicBatching, KVCache,
        LengthBucketedBatching, MeasuredOther, Model, Roofline, RoofStep, StaticBatching,
    )  # fmt: skip
    return {kind.__name__: kind for kind in kinds}


def is_known(value: Any) -> bool:
    return _kinds().get(type(value).__name__) is type(value)


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_KIND: "float", "text": repr(value)}
    if isinstance(value, list):
        return [_encode(each) for each in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [_encode(each) for each in value]}
    if isinstance(value, Mapping):
        if all(isinstance(name, str) and name != _KIND for name in value):
            return {name: _encode(each) for name, each in value.items()}
        return {_KIND: "dict", "items": [[_encode(name), _encode(each)] for name, each in value.items()]}
    if is_known(value):
        return {
            _KIND: type(value).__name__,
            **{each.name: _encode(getattr(value, each.name)) for each in fields(value)},
        }
    return {_KIND: "text", "text": as_text(value)}


def _is_text(encoded: Any) -> bool:
    return isinstance(encoded, dict) and encoded.get(_KIND) == "text"


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {name: _decode(each) for name, each in value.items()}
    if kind == "float":
        return float(value["text"])
    if kind == "text":
        return str(value["text"])
    if kind == "tuple":
        return tuple(_decode(each) for each in value["items"])
    if kind == "dict":
        return {_decode(name): _decode(each) for name, each in value["items"]}
    known = _kinds().get(kind)
    if known is None:
        raise ValueError(f"it holds a {kind!r}, which this version doesn't know")
    return known(**{name: _decode(each) for name, each in value.items() if name != _KIND})


def as_text(value: Any) -> str:
    """A name for a function of one's own, without the address that its repr has."""
    return str(getattr(value, "__qualname__", value))


# Arrays
def is_saved_run(path: str | Path) -> bool:
    """Whether the file is an archive as `save_run` writes them, by its first bytes."""
    if Path(path).is_dir():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _arrays(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} isn't a saved run, or is damaged: {error}") from None


def _table(arrays: dict[str, npt.NDArray[Any]], prefix: str, names: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    table = {name: arrays[f"{prefix}.{name}"] for name in names}
    for name, column in table.items():
        kinds = "f" if name == "waited_request_s" else "iu"
        if column.ndim != 1 or column.dtype.kind not in kinds or len(column) != len(table[names[0]]):
            raise ValueError(f"{prefix}.{name} has {column.dtype} of shape {column.shape}")
    return table
