"""Images of Pillow in rows."""

from __future__ import annotations

import base64
import io
from typing import Any

_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def image_url(image: Any) -> str:
    """An image of Pillow as a `data:` URL: PNG, which keeps each pixel."""
    kept = image if image.mode in _PNG else image.convert("RGB")
    buffer = io.BytesIO()
    kept.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
