"""What the server was told to be: one frozen value, checked once."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from octavo.core.errors import InvalidConfig, shown

ToolParserName = Literal["auto", "hermes", "llama3", "none"]
ReasoningParserName = Literal["auto", "think", "none"]

MAX_PROMPTS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where the server listens, who may use it, and how much one request may ask for.

    Attributes:
        host, port: address to bind; port 0 takes a free one.
        api_keys: a request must bring one of them; none means that everybody may use the server.
        model_name: what clients call the model.
        allowed_hosts: names beside localhost, a proxy's say, under which clients reach a server that binds to
            loopback and asks for no key.
        cors_origins: origins whose pages may use the API; "*" is all of them, none is the default.
        max_body_bytes: bytes of a request's body at most.
        max_prompts: prompts of one completions request at most.
        drain_timeout_s: seconds that running requests get when the server is told to stop.
        log_prompts: write prompts and outputs to the log.
        show_tokens: whether the memory view tells which tokens a block holds; None says yes where only this
            machine can connect.
        tool_parser: the form of the model's tool calls; "auto" reads it off its chat template.
        reasoning_parser: how thoughts are marked; "auto" looks for ``<think>`` in the chat template.
        metrics_prefix: what the names of metrics begin with; "vllm" suits dashboards made for vLLM.
        otlp_endpoint: URL of an OpenTelemetry collector that takes traces over HTTP; None sends none.

    Raises:
        InvalidConfig: a value of the wrong type or out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    model_name: str = "model"
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_prompts: int = 64
    drain_timeout_s: float = 30.0
    log_prompts: bool = False
    show_tokens: bool | None = None
    tool_parser: ToolParserName = "auto"
    reasoning_parser: ReasoningParserName = "auto"
    metrics_prefix: str = "octavo"
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        self._check("host", bool(self.host), "a name or address, not empty")
        self._check("port", 0 <= self.port <= 65535, "from 0 to 65535")
        keys_ok = all(key and key.isascii() and key.isprintable() and " " not in key for key in self.api_keys)
        if not keys_ok:  # a key is never shown
            raise InvalidConfig("api_key: must be printable ASCII without spaces, not empty")
        for origin in self.cors_origins:
            ok = origin == "*" or re.fullmatch(r"https?://[^/\s]+", origin) is not None
            self._check("cors_origins", ok, 'a scheme and a host, like https://example.org, or "*"')
        self._check("model_name", bool(self.model_name), "a name, not empty")
        self._check("max_body_bytes", self.max_body_bytes >= 1024, "at least 1024")
        self._check("max_prompts", 1 <= self.max_prompts <= MAX_PROMPTS, f"from 1 to {MAX_PROMPTS}")
        self._check("drain_timeout_s", 0 <= self.drain_timeout_s <= 86_400, "from 0 to 86400")
        self._check_choice("tool_parser", get_args(ToolParserName))
        self._check_choice("reasoning_parser", get_args(ReasoningParserName))
        ok = self.metrics_prefix.isascii() and self.metrics_prefix.replace("_", "a").isalnum()
        self._check("metrics_prefix", ok and not self.metrics_prefix[0].isdigit(), "letters, digits and _")
        if self.otlp_endpoint is not None:
            url = urlsplit(self.otlp_endpoint)
            ok = url.scheme in ("http", "https") and bool(url.netloc)
            self._check("otlp_endpoint", ok, "a URL like http://127.0.0.1:4318")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shows_tokens(self) -> bool:
        """Whether the memory view tells which tokens a block holds."""
        return self.is_local if self.show_tokens is None else self.show_tokens

    def _check(self, name: str, ok: bool, limit: str) -> None:
        if not ok:
            raise InvalidConfig(f"{name}={shown(getattr(self, name))}: must be {limit}")

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        self._check(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
