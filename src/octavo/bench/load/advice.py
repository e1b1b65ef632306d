"""What to do about a server that does not answer as it should, where that can be told."""

import ssl

from octavo.bench.load.http import Address, Disconnected, Response

_NO_KEY = (401, 403)


def of_problem(address: Address, problem: OSError) -> str:
    """Of a connection that failed; empty, or to be put behind what failed."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return "; SSL_CERT_FILE names a file with certificates to trust"
    if isinstance(problem, (ssl.SSLError, TimeoutError)) and address.scheme == "https":
        return f"; if it speaks no TLS, write http://{address.netloc}{address.root}"
    if isinstance(problem, Disconnected) and address.scheme == "http":
        return f"; if it speaks TLS, write https://{address.netloc}{address.root}"
    return ""


def of_answer(response: Response) -> str:
    """Of an answer that is no success; the same."""
    where = response.headers.get("location")
    if 300 <= response.status < 400 and where:
        return f"; it redirects to {where[:300]}, and redirects are not followed: give that address"
    if response.status in _NO_KEY:
        return "; --api-key-file names a file with the key"
    return ""
