"""A load test of a live server as a function: `bench` sends a workload and gives a `Result`.

As `servinglab.simulate` does of a model and `servinglab.read_run` of a file; ``servinglab bench http URL`` is the
command. For tests of several stages `load_test.run.run_load_test` sends a plan, and `load_test.report` says what came
of it.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servinglab.result.result import Result
    from servinglab.workload.model import Workload


def bench(
    url: str,
    workload: Workload,
    folder: str | Path | None = None,
    *,
    since: str = "scheduled",
    duration_s: float | None = None,
    workers: int = 1,
    model: str | None = None,
    api: str = "chat",
    **setup: Any,
) -> Result:
    """Send a workload to an OpenAI-compatible server, and time what comes back.

    The requests leave from processes of their own, so this works in a notebook too, and a slow cell delays none.

    Parameters
    ----------
    url : str
        The server's address, such as ``"http://127.0.0.1:8000"``. The key that it may want is read from the variable
        OPENAI_API_KEY and written nowhere.
    workload : Workload
        Open or closed. `output_tokens` are the limits that are sent; an answer may end before.
    folder : path, optional
        New or empty, or of a run of this workload that was broken off, which is gone on with. It keeps what was
        measured, for `read_run` and ``servinglab bench show``; without it only the result remains.
    since : {"scheduled", "sent"}
        What an arrival is: when the workload wanted the request sent, or when it was.
    duration_s : float, optional
        After which clients of a closed loop send no more.
    workers : int
        Processes that send, at least 1; none is started that would have nothing to send.
    model : str, optional
        The server's first if not given.
    api : {"chat", "completions"}
    **setup
        More of `servinglab.measure.load_test.run.Setup`: ``seed`` of the prompts (0), ``headers``, ``extra``,
        ``tokenizer``, ``finish_reasons``, timeouts.

    Returns
    -------
    Result
        Without a log of steps, and without the moment of a request's first step: a client sees neither.

    Warns
    -----
    UserWarning
        Where the client was the bottleneck: its latencies are then its own as much as the server's.

    Raises
    ------
    ValueError
        If the server can't be asked, an argument is out of range, or nobody counted the tokens of the answers.
    KeyboardInterrupt
        On Ctrl-C, naming the folder that keeps what was measured.
    ChildProcessError
        If a part of the load generator fails; with its reason.
    ImportError
        If aiohttp isn't installed.

    Examples
    --------
    >>> import servinglab as sl
    >>> from servinglab.sim_server import serve
    >>> import warnings
    >>> warnings.simplefilter("ignore")  # this machine may be busy
    >>> with serve(sl.ContinuousBatching(8), sl.AffineStep(0.001, 0.0)) as url:
    ...     run = bench(url, sl.poisson(100, 5, seed=1, prompt_tokens=20, output_tokens=3))
    >>> len(run), int(run.finished.sum()), run.output_tokens.tolist()
    (5, 5, [3, 3, 3, 3, 3])
    """
    from servinglab.base.checks import check_choice, check_number
    from servinglab.measure.load_test.plan import stage_of
    from servinglab.measure.load_test.report import make_report, read_load_test
    from servinglab.measure.load_test.run import Setup, run_load_test
    from servinglab.measure.load_test.server_facts import key_headers, root_of, served_model
    from servinglab.measure.readers.read_run import read_run
    from servinglab.workload.model import Workload

    check_choice("since", since, ("scheduled", "sent"))
    check_choice("api", api, ("chat", "completions"))
    workers = check_number("workers", workers, ge=1, integer=True)
    if not isinstance(workload, Workload):
        raise ValueError(f"workload must be a Workload; got {workload!r}")
    if folder is not None and not isinstance(folder, (str, Path)):
        raise ValueError(f"folder must be a path; got {folder!r}")
    stage = stage_of(workload, duration_s)
    # what is asked for is checked before the server is: its model, and our key, are added then
    asked = Setup(root=root_of(url), api=api, model="?" if model is None else model, **{"seed": 0, **setup})
    asked = replace(asked, headers={**key_headers(), **(asked.headers or {})})
    if model is None:
        asked = replace(asked, model=served_model(asked.root, asked.headers or {}))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, "bench") if folder is None else Path(folder)
        if not run_load_test(place, asked, [stage], workers=workers):
            kept = "nothing was kept: name a folder" if folder is None else f"{place} keeps what was measured"
            raise KeyboardInterrupt(f"the load test was broken off; {kept}")
        test = read_load_test(place)
        for level in make_report(test).content["levels"]:
            if level["client"]["bound"]:
                warnings.warn(
                    f"the client was the bottleneck ({'; '.join(level['client']['why'])}): the latencies are the "
                    "client's as much as the server's",
                    stacklevel=2,
                )
        return read_run(place, since)
