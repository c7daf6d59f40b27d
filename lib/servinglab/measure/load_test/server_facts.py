"""What does the server say of itself? Its model, version and settings, and its own metrics while the test runs.

All of it may be missing: a server needs none of it to answer requests. What couldn't be learnt is said, so that a
report never passes off silence as a zero.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servinglab.metrics.exposed import READ_AS

_PATIENCE_S = 2.0
EVERY_S = 1.0
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+([^\s]+)", re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(url: str, headers: dict[str, str]) -> str:
    """The text at an address.

    Raises
    ------
    OSError
        If there is none, in time.
    """
    request = urllib.request.Request(url, headers=headers)
    straight = urllib.request.ProxyHandler({})  # as the load
    opener = urllib.request.build_opener(straight, _SameServer)
    with opener.open(request, timeout=_PATIENCE_S) as response:
        return response.read().decode("utf-8", "replace")


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to another page of the same server; another server isn't shown the key."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            return None  # the status is then the answer
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def root_of(url: str) -> str:
    """A server's address without ``/v1``.

    Raises
    ------
    ValueError
        If it isn't an address.

    Examples
    --------
    >>> root_of("localhost:8000/v1/")
    'http://localhost:8000'
    """
    wrong = f"URL must be an address such as http://127.0.0.1:8000; got {url!r}"
    if not isinstance(url, str):
        raise ValueError(wrong)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, for one
        known = False
    if not known:
        raise ValueError(wrong)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def key_headers() -> dict[str, str]:
    """The header with the key that the variable OPENAI_API_KEY holds; none if it holds none."""
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def served_model(root: str, headers: dict[str, str]) -> str:
    """The first model that a server lists.

    Raises
    ------
    ValueError
        If it lists none, or doesn't answer, with the reason.
    """
    facts = server_facts(root, headers, f"{root}/metrics")
    if not facts["models"]:
        why = facts["untold"].get("models", f"{root} lists none")
        raise ValueError(f"no model to ask for: give --model, or model= in Python ({why})")
    return str(facts["models"][0])


def server_facts(root: str, headers: dict[str, str], metrics_url: str) -> dict[str, Any]:
    """Models, version and cache settings, as far as the server tells them.

    Returns
    -------
    dict
        ``models``: ids; ``max_model_len``, ``version``, ``cache_config``: None if not told; ``untold``: what couldn't
        be learnt, and why.
    """
    facts: dict[str, Any] = {"models": [], "max_model_len": None, "version": None, "cache_config": None}
    untold: dict[str, str] = {}

    def ask(what: str, url: str) -> str:
        try:
            return get(url, headers)
        except (OSError, ValueError, http.client.HTTPException) as error:
            untold[what] = f"{url}: {error}"
            return ""

    try:
        listed = json.loads(ask("models", f"{root}/v1/models") or "{}").get("data", [])
        facts["models"] = [str(row["id"]) for row in listed]
        facts["max_model_len"] = listed[0].get("max_model_len") if listed else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        untold["models"] = f"{root}/v1/models: {type(error).__name__}: {error}"
    try:
        facts["version"] = json.loads(ask("version", f"{root}/version") or "{}").get("version")
    except (ValueError, AttributeError) as error:
        untold["version"] = f"{root}/version: {error}"
    for name, labels, _ in samples(ask("metrics", metrics_url)):
        if name.endswith("cache_config_info"):
            facts["cache_config"] = labels
    return {**facts, "untold": untold}


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """The samples of a Prometheus text: name, labels, value.

    Examples
    --------
    >>> samples('# HELP x\\nvllm:num_requests_running{engine="0"} 3.0\\n')
    [('vllm:num_requests_running', {'engine': '0'}, 3.0)]
    """
    found = []
    for name, labels, value in _SAMPLE.findall(text):
        try:
            found.append((name, dict(_LABEL.findall(labels)), float(value)))
        except ValueError:
            continue
    return found


def kept(text: str) -> dict[str, float]:
    """The figures of `READ_AS` in a Prometheus text: summed over a server's engines, usage averaged.

    Examples
    --------
    >>> kept('vllm:kv_cache_usage_perc{engine="0"} 0.5\\nvllm:kv_cache_usage_perc{engine="1"} 0.7\\n')
    {'kv_cache_usage_perc': 0.6}
    """
    values: dict[str, list[float]] = {}
    for name, _, value in samples(text):
        if name in READ_AS:
            values.setdefault(READ_AS[name], []).append(value)
    return {name: sum(each) / (len(each) if name.endswith("perc") else 1) for name, each in values.items()}


class Sampler:
    """A context that writes the server's figures to a file, a JSON object a second; `fail` is told why it can't."""

    def __init__(
        self, url: str, headers: dict[str, str], file: Path, origin_ns: int, fail: Callable[[str], None]
    ) -> None:
        self._url, self._headers, self._file, self._origin_ns, self._fail = url, headers, file, origin_ns, fail
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:
            self._fail(f"the server's metrics can't be kept: {type(error).__name__}: {error}")

    def _sample(self) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            while True:
                last = self._over.is_set()
                at_s = round((time.perf_counter_ns() - self._origin_ns) / 1e9, 6)
                try:
                    figures = kept(get(self._url, self._headers))
                except urllib.error.HTTPError:
                    return  # it has no metrics: server_facts says so
                except (OSError, ValueError, http.client.HTTPException):
                    figures = {}  # busy, or gone for a moment: a gap
                if figures:
                    file.write(json.dumps({"t_s": at_s, **figures}) + "\n")
                    file.flush()
                if last:
                    return
                self._over.wait(EVERY_S)
