"""What was said in a chat, as data: kept, saved, loaded."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from octavo.core.errors import InvalidRequest, shown
from octavo.core.sampling import SamplingParams

Message = dict[str, str]

SETTINGS: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "max_tokens",
    "seed",
)
_ROLES: Final = ("system", "user", "assistant")


@dataclass(slots=True)
class Conversation:
    """Messages, what the model was told before them, and how answers are drawn.

    Attributes:
        system: instructions for the model, or None.
        messages: of user and assistant, in turns.
    """

    params: SamplingParams
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    @property
    def prompt(self) -> list[Message]:
        """All that the model is given."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return opening + self.messages

    def set(self, name: str, text: str) -> None:
        """Change a setting; a text that is no number is refused, "none" takes the setting back where it can.

        Raises:
            InvalidRequest: no such setting, or no value for it.
        """
        name = name.replace("-", "_")
        if name not in SETTINGS:
            raise InvalidRequest(f"unknown setting {shown(name)}; known are {', '.join(SETTINGS)}")
        value: Any
        try:
            value = None if text.lower() == "none" else json.loads(text)
        except ValueError:
            value = text
        self.params = replace(self.params, **{name: value})

    def save(self, file: Path) -> None:
        """Write messages and settings as JSON.

        Raises:
            InvalidRequest: the file cannot be written.
        """
        settings = {name: getattr(self.params, name) for name in SETTINGS}
        content = json.dumps({"messages": self.prompt, "settings": settings}, ensure_ascii=False, indent=1)
        try:
            file.write_text(content + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"cannot write {file}: {error.strerror}") from error

    def load(self, file: Path) -> None:
        """Take messages, and settings if there are any, from a file of ``save``; a list of messages will do.

        Raises:
            InvalidRequest: it cannot be read, or is none; nothing has changed then.
        """
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidRequest(f"cannot read {file}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{file}: not JSON: {error}") from error
        content = found if isinstance(found, dict) else {"messages": found}
        messages = _checked_messages(file, content.get("messages"))
        settings = content.get("settings", {})
        if not isinstance(settings, dict) or (settings.keys() - set(SETTINGS)):
            raise InvalidRequest(f'{file}: "settings" must be an object of {", ".join(SETTINGS)}')
        params = replace(self.params, **settings)
        has_system = bool(messages) and messages[0]["role"] == "system"
        self.system = messages[0]["content"] if has_system else None
        self.messages = messages[has_system:]
        self.params = params


def _checked_messages(file: Path, messages: Any) -> list[Message]:
    """Refuse all that no chat here has left."""
    if not isinstance(messages, list):
        raise InvalidRequest(f'{file}: expected a list of messages, or an object with "messages"')
    for place, message in enumerate(messages):
        ok = isinstance(message, dict) and message.get("role") in _ROLES[place > 0 :]
        if not ok or not isinstance(message.get("content"), str):
            raise InvalidRequest(
                f"{file}: message {place}: expected a role of {', '.join(_ROLES[place > 0 :])}, and a text "
                'as "content"'
            )
    return [{"role": message["role"], "content": message["content"]} for message in messages]
