"""Frames of notebooks, unpacked."""

from __future__ import annotations

import base64
import gzip
import re
from html import unescape


def unpacked(frame: str) -> str:
    """The page in a frame."""
    (inside,) = re.findall(r'srcdoc="(.*?)"', frame, re.DOTALL)
    (packed,) = re.findall(r'id="packed">(.*?)</script>', unescape(inside))
    return gzip.decompress(base64.b64decode(packed)).decode()
