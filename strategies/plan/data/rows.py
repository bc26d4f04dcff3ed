"""Row of a JSON-lines dataset: a text, a prompt and its completion, or a conversation.

Pure and torch-free. Learned is a text as a whole, a completion, or the assistant's messages; the
rest is only read.
"""

from typing import NamedTuple

ASSISTANT = "assistant"
FORMS = '"text", or "prompt" and "completion", or "messages"'


class WrongRow(ValueError):
    """Line that has none of the forms, or has nothing to learn from."""


class TextPiece(NamedTuple):
    """Piece of a document; `learned` if the model learns to write it."""

    text: str
    learned: bool


class Text(NamedTuple):
    """{"text": "..."}"""

    text: str

    @property
    def parts(self) -> list[TextPiece]:
        return [TextPiece(self.text, True)]


class Completion(NamedTuple):
    """{"prompt": "...", "completion": "..."}"""

    prompt: str
    completion: str

    @property
    def parts(self) -> list[TextPiece]:
        return [TextPiece(self.prompt, False), TextPiece(self.completion, True)]


class Message(NamedTuple):
    role: str
    content: str


class Chat(NamedTuple):
    """{"messages": [{"role": "user", "content": "..."}, ...]}"""

    messages: tuple[Message, ...]

    @property
    def parts(self) -> list[TextPiece]:
        """Default format, used if the tokenizer has no template: the role on its own line, then
        text."""
        parts = []
        for role, content in self.messages:
            parts.append(TextPiece(f"<|{role}|>\n", False))
            parts.append(TextPiece(f"{content}\n", role == ASSISTANT))
        return parts


Row = Text | Completion | Chat


def row_from(document: object) -> Row:
    """Return the row that a line's JSON describes.

    Raises WrongRow, whose message continues a sentence that begins with the line's number.
    """
    fields = document if isinstance(document, dict) else {}
    match [key for key in ("text", "prompt", "messages") if key in fields]:
        case ["text"]:
            return Text(string_of(fields, "text"))
        case ["prompt"]:
            prompt, completion = string_of(fields, "prompt"), string_of(fields, "completion")
            if not completion:
                raise WrongRow("has an empty completion, so there is nothing to learn")
            return Completion(prompt, completion)
        case ["messages"]:
            return Chat(messages_from(fields["messages"]))
        case []:
            raise WrongRow(f"is not an object with {FORMS}")
        case several:
            raise WrongRow(f"has {' and '.join(several)}; a line may only have one of: {FORMS}")


def string_of(fields: dict[str, object], key: str) -> str:
    """Return the string under a key."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise WrongRow(f'has no "{key}" that is a string')
    return value


def messages_from(messages: object) -> tuple[Message, ...]:
    """Return the messages of a conversation."""
    if not isinstance(messages, list):
        raise WrongRow('has "messages" that is not a list')
    found = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not message.get("role"):
            raise WrongRow(f'has a message {number} without a "role"')
        try:
            found.append(Message(string_of(message, "role"), string_of(message, "content")))
        except WrongRow as error:
            raise WrongRow(f"has a message {number} that {error}") from error
    if not any(message.role == ASSISTANT and message.content for message in found):
        raise WrongRow("has no message of the assistant, so there is nothing to learn")
    return tuple(found)
