"""What is said of a server that does not answer as it should: which URL, why, and what to do."""

import asyncio
import contextlib

import pytest

from octavo.bench.load.http import Address
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.core.errors import InvalidRequest, OctavoError


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/completions", "/v1"),
        ("/v1/chat/completions/", "/v1 and --chat"),
        ("/deep/v1/models", "/deep/v1"),
    ],
)
def test_an_endpoint_is_no_address(path, instead):
    with pytest.raises(InvalidRequest) as raised:
        Address.parse(f"http://a:5{path}")
    assert str(raised.value).endswith(f"is added to a server's address; give http://a:5{instead}")


def answering(line, *headers):
    """A server that gives the same answer to everything."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read(1 << 16)
            writer.write("\r\n".join([line, *headers, "Content-Length: 2", "", "{}"]).encode())
            await writer.drain()
        writer.close()

    return serve


async def closing(reader, writer):
    await reader.read(1 << 16)
    writer.close()


def problem(serve, *, scheme="http", model=None, timeout_s=30):
    """What is said of a server at H."""

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            target = OpenAITarget(f"{scheme}://{host}/deep", ServerOptions(model=model, timeout_s=timeout_s))
            with pytest.raises(OctavoError) as raised:
                await target.open()
            await target.close()
        return str(raised.value).replace(host, "H")

    return asyncio.run(run())


MODELS, COMPLETIONS = (
    "http://H/deep/v1/models: ",
    "http://H/deep/v1/completions does not answer a small request: ",
)


def test_a_redirect():
    serve = answering("HTTP/1.1 307 X", "Location: http://b:6/v1/models")
    todo = "; it redirects to http://b:6/v1/models, and redirects are not followed: give that address"
    assert problem(serve) == f"{MODELS}status 307: {{}}{todo}"
    assert problem(serve, model="m") == f"{COMPLETIONS}http 307: {{}}{todo}"


def test_no_list_of_models():
    serve = answering("HTTP/1.1 404 X")
    todo = "; if the address is right, it does not list its models: name one with --model-name"
    assert problem(serve) == f"{MODELS}status 404: {{}}{todo}"
    assert problem(serve, model="m") == f"{COMPLETIONS}http 404: {{}}"


def test_no_key():
    serve = answering("HTTP/1.1 401 X")
    todo = "; --api-key-file names a file with the key"
    assert problem(serve) == f"{MODELS}status 401: {{}}{todo}"
    assert problem(serve, model="m") == f"{COMPLETIONS}http 401: {{}}{todo}"


def test_a_server_that_may_speak_tls():
    todo = "; if it speaks TLS, write https://H/deep"
    for model in (None, "m"):
        told = problem(closing, model=model)
        assert told == f"cannot reach http://H/deep: the connection was closed{todo}"
    told = problem(answering("\x15\x03\x01"))
    assert told.startswith("cannot reach http://H/deep: not HTTP: ")
    assert told.endswith(todo)


async def waiting(reader, writer):
    await reader.read()
    writer.close()


def test_a_server_that_speaks_no_tls():
    todo = "; if it speaks no TLS, write http://H/deep"
    for model in (None, "m"):
        assert problem(answering("HTTP/1.1 400 X"), scheme="https", model=model).endswith(todo)
    told = problem(waiting, scheme="https", timeout_s=0.05)
    assert told == f"https://H/deep does not answer within 0.05 s{todo}"
    assert problem(waiting, timeout_s=0.05) == "http://H/deep does not answer within 0.05 s"
