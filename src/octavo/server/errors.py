"""Errors as OpenAI's clients know them: ``{"error": {"message", "type", "param", "code"}}`` and a status.

400 is what the client did, 401 a missing key, 403 a host name that is not ours, 404 an unknown model or path,
413 too large a body, 429 a full queue, 503 a server that stops. 500 is always our own fault.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo.core.errors import (
    EngineFailed,
    InvalidRequest,
    OctavoError,
    QueueFull,
    RequestFailed,
    shown,
)
from octavo.engine.async_engine import EngineDraining
from octavo.engine.grammar import is_grammar_failure

RETRY_AFTER_S: Final = 1

_log = logging.getLogger("octavo.server")

# What the validator puts in the path of a problem that is no name of a field.
_NO_NAMES: Final = frozenset(
    {"body", "path", "query", "header", "str", "int", "float", "bool", "list", "dict"}
)

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    408: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(OctavoError):
    """An error with its HTTP status.

    Attributes:
        param: name of the offending parameter, or None.
        code: a word for programs, or None.
        headers: to send with it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The response's body."""
        error_type = _TYPES.get(self.status, "internal_server_error")
        return {"error": {"message": str(self), "type": error_type, "param": self.param, "code": self.code}}


def as_api_error(error: Exception) -> ApiError:
    """What the client is told of an error; nothing of it if it is a fault of ours that nobody expected."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequest):
        return ApiError(400, str(error), param=error.param, code="invalid_value")
    if isinstance(error, RequestFailed) and is_grammar_failure(error.reason):
        return ApiError(400, str(error), param="structured_outputs", code="grammar_failed")
    if isinstance(error, QueueFull):
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        return ApiError(429, str(error), code="queue_full", headers=retry)
    if isinstance(error, EngineDraining):
        return draining()
    if isinstance(error, EngineFailed):
        return ApiError(500, str(error), code="engine_failed")
    if isinstance(error, OctavoError):
        return ApiError(500, str(error), code="request_failed")
    return ApiError(500, "an internal error; the server's log says more", code="internal_error")


def draining() -> ApiError:
    """The server finishes what it has and takes nothing new."""
    retry = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(503, "the server is shutting down", code="draining", headers=retry)


def json_bytes(value: object) -> bytes:
    """JSON in UTF-8; what no UTF-8 can hold is written as an escape."""
    try:
        return to_json(value)  # for each token of each stream, so it matters that json takes 14 times as long
    except PydanticSerializationError:  # half a surrogate pair
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    return Response(json_bytes(value), status, headers, media_type="application/json")


def error_response(error: Exception) -> Response:
    """A response that says what went wrong."""
    told = as_api_error(error)
    if told.status == 500:
        _log.error("%s", error, exc_info=error)
    return json_response(told.body(), told.status, told.headers)


def install_error_handlers(app: FastAPI) -> None:
    """Have every error of the routes answered in this form."""

    async def known(_: Request, error: Exception) -> Response:
        return error_response(error)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(_of_validation(error.errors()))

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, ApiError):  # raised while the body was read
            return error_response(error.__cause__)
        if error.__cause__ is not None and error.status_code == 400:
            why = type(error.__cause__).__name__
            return error_response(
                ApiError(400, f"the body cannot be read as JSON in UTF-8: {why}", code="invalid_json")
            )
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return error_response(
            ApiError(error.status_code, str(error.detail), code=code, headers=error.headers)
        )

    app.add_exception_handler(OctavoError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _of_validation(problems: Sequence[Any]) -> ApiError:
    """The first problem of a body that does not have the documented form."""
    problem = problems[0]
    cause = (problem.get("ctx") or {}).get("error")
    if isinstance(cause, InvalidRequest):
        return as_api_error(cause)
    if problem["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {problem['ctx']['error']}", code="invalid_json")
    name = _path(problem["loc"])
    where = name or "body"
    if problem["type"] == "extra_forbidden":
        return ApiError(400, f"{where}: there is no such parameter", param=name, code="unknown_parameter")
    if problem["type"] == "missing":
        return ApiError(400, f"{where}: is required", param=name, code="missing_parameter")
    # Of a value that may have one of several types there is a problem for each.
    reasons = dict.fromkeys(other["msg"] for other in problems if _path(other["loc"]) == name)
    told = ", or ".join(reason.removeprefix("Input ") for reason in reasons)
    return ApiError(
        400, f"{where}: {told}; given: {shown(problem.get('input'))}", param=name, code="invalid_type"
    )


def _path(parts: Sequence[object]) -> str | None:
    """``messages[2].content``, or None for the body itself; without the names of types that were tried."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif isinstance(part, str) and part.isidentifier() and part not in _NO_NAMES and part[0].islower():
            path += f".{part}" if path else part
    return path or None
