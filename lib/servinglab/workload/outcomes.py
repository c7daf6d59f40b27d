"""How a request can end: one vocabulary for simulated, measured and saved runs, and for what clients see."""

from __future__ import annotations

from enum import IntEnum

NEVER = -1  # in a nanosecond column: it didn't happen


class Status(IntEnum):
    """How a request ended. A number that was given away stays: saved runs hold it.

    In records and reports the same names stand in lower case: `outcome`.

    Examples
    --------
    >>> Status.RATE_LIMITED.outcome, Status.RATE_LIMITED.meaning
    ('rate_limited', 'Too Many Requests, 429')
    >>> Status.of("rate_limited") is Status.RATE_LIMITED
    True
    """

    FINISHED = 0
    UNSERVED = 1
    REJECTED = 2
    RATE_LIMITED = 3
    REFUSED = 4
    CONNECT_FAILED = 5
    CONNECT_TIMEOUT = 6
    DISCONNECTED = 7
    CLIENT_ERROR = 8
    SERVER_ERROR = 9
    REDIRECTED = 10
    UNEXPECTED_STATUS = 11
    FIRST_TOKEN_TIMEOUT = 12
    HUNG = 13
    TIMEOUT = 14
    CUT = 15
    MALFORMED = 16
    NOT_UTF8 = 17
    STREAM_ERROR = 18
    ERROR_BODY = 19
    NOT_STREAMED = 20
    FINISH_ABORT = 21
    FINISH_ERROR = 22
    FINISH_UNKNOWN = 23
    NO_TOKENS = 24
    CLIENT_FAULT = 25
    INTERRUPTED = 26
    ABORTED = 27
    FAILED = 28

    @classmethod
    def of(cls, outcome: str) -> Status:
        """The status that a record calls so; KeyError if there is none."""
        return cls[outcome.upper()]

    @property
    def outcome(self) -> str:
        """Its name in records and reports."""
        return self.name.lower()

    @property
    def meaning(self) -> str:
        """In words."""
        return MEANINGS[self]


MEANINGS = {
    Status.FINISHED: "a whole answer",
    Status.UNSERVED: "still waiting when nothing more could happen, or when the run was interrupted",
    Status.REJECTED: "turned away on arrival, because it could never have been served to its end",
    Status.RATE_LIMITED: "Too Many Requests, 429",
    Status.REFUSED: "the connection was refused",
    Status.CONNECT_FAILED: "no connection for another reason: name not found, unreachable, TLS",
    Status.CONNECT_TIMEOUT: "no connection in time",
    Status.DISCONNECTED: "the connection was closed before any answer",
    Status.CLIENT_ERROR: "another 4xx: the server didn't like the request",
    Status.SERVER_ERROR: "5xx",
    Status.REDIRECTED: "3xx: the server names another address, which isn't asked",
    Status.UNEXPECTED_STATUS: "a status that is neither 200 nor 3xx nor 4xx nor 5xx",
    Status.FIRST_TOKEN_TIMEOUT: "no token in time: slow first bytes, or none",
    Status.HUNG: "the stream stopped, without an end",
    Status.TIMEOUT: "tokens came, but the whole took too long",
    Status.CUT: "the stream ended before the answer did",
    Status.MALFORMED: "an event that isn't what the interface promises",
    Status.NOT_UTF8: "an event that isn't UTF-8",
    Status.STREAM_ERROR: "the server reported an error in the stream",
    Status.ERROR_BODY: "200, and an error instead of a stream",
    Status.NOT_STREAMED: "200, and a whole answer at once instead of a stream",
    Status.FINISH_ABORT: "the server broke the answer off: finish_reason abort, or a word for it",
    Status.FINISH_ERROR: "the server failed within the answer: finish_reason error",
    Status.FINISH_UNKNOWN: "a finish_reason that isn't known here, or none",
    Status.NO_TOKENS: "a whole answer without a token",
    Status.CLIENT_FAULT: "the client itself failed",
    Status.INTERRUPTED: "the run was stopped meanwhile; resuming sends it again",
    Status.ABORTED: "given up by its client, and the engine told of it",
    Status.FAILED: "failed in a way that its file doesn't name",
}
"""What each means."""

TURNED_AWAY = (Status.REJECTED, Status.RATE_LIMITED)
"""Over as soon as they come: nobody waits for these."""

TIMEOUTS = (Status.CONNECT_TIMEOUT, Status.FIRST_TOKEN_TIMEOUT, Status.HUNG, Status.TIMEOUT)

# what only a simulation or a file of another tool can say: a client doesn't see it
_NOT_SEEN = (Status.UNSERVED, Status.REJECTED, Status.ABORTED, Status.FAILED)
OUTCOMES = {status.outcome: status.meaning for status in Status if status not in _NOT_SEEN}
"""Every way a request can end for a client, by its name in a record, and what it means."""
