"""Text to token ids and back: a checkpoint's tokenizer and chat template."""

from edgekit.runtime.tokenizer.errors import ChatTemplateError, TokenizerError
from edgekit.runtime.tokenizer.tokenizer import (
    CONFIG_FILE,
    MOST_TEMPLATES,
    OLDER_CONFIG_FILE,
    TEMPLATE_FILE,
    TEMPLATE_FOLDER,
    TOKENIZER_FILE,
    Tokenizer,
    check_text,
    most_bytes,
    template_files,
)

__all__ = [
    "CONFIG_FILE",
    "MOST_TEMPLATES",
    "OLDER_CONFIG_FILE",
    "TEMPLATE_FILE",
    "TEMPLATE_FOLDER",
    "TOKENIZER_FILE",
    "ChatTemplateError",
    "Tokenizer",
    "TokenizerError",
    "check_text",
    "most_bytes",
    "template_files",
]
