"""LLVM IR texts up to the names in them."""

from __future__ import annotations

import hashlib
import re

_TOKEN = re.compile(
    r"""
      "[^"\n]*"                    # strings: constraints of inline assembly
    | ;[^\n]*                      # comments
    | (?P<local>%[\w.$-]+)         # values, and labels where they are used
    | (?m:^(?P<label>[\w.$-]+):)   # labels where they stand
    | (?P<metadata>![0-9]+)
    | (?P<attributes>\#[0-9]+)
    """,
    re.VERBOSE,
)
_OWN = re.compile(r"define\b[^@\n]*@([\w.$-]+)\(")
_HASHED = re.compile(r"(quantglow_\w+?)_[0-9a-f]{32}\b")


def normal_text(text: str) -> str:
    """The text with values, labels, metadata, attribute groups and the functions that it defines
    numbered in the order of appearance; without comments, blank lines and indentation.
    """
    numbers: dict[str, str] = {}

    def numbered(name: str, prefix: str) -> str:
        return numbers.setdefault(name, f"{prefix}{len(numbers)}")

    def renamed(match: re.Match[str]) -> str:
        token = match[0]
        if match["local"]:
            return numbered(token, "%")
        if match["label"]:
            return numbered(f"%{match['label']}", "%")[1:] + ":"
        if match["metadata"] or match["attributes"]:
            return numbered(token, token[0])
        return "" if token.startswith(";") else token

    text = _HASHED.sub(r"\1", text)
    for index, name in enumerate(_OWN.findall(text)):
        text = re.sub(rf"@{re.escape(name)}(?![\w.$-])", f"@function{index}", text)
    lines = _TOKEN.sub(renamed, text).split("\n")
    return "\n".join(line.strip() for line in lines if line.strip()) + "\n"


def digest(content: str | bytes) -> str:
    """Sixteen hex digits of the SHA-256."""
    octets = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(octets).hexdigest()[:16]
