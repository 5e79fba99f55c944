"""A text line drawn with half-block characters, two pixels to a character cell. Pure functions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GLYPHS = " ▀▄█"
SCALE = 3  # image pixels to one pixel of the preview, both ways
_INK_SHARE = 0.4  # of the strongest contrast to the paper


def preview(image: npt.NDArray[np.uint8]) -> list[str]:
    """Rows of text that show the ink of the image, without empty rows above and below."""
    grey = image.mean(axis=2)
    rows, columns = (size // SCALE for size in grey.shape)
    grey = grey[: rows * SCALE, : columns * SCALE].reshape(rows, SCALE, columns, SCALE).mean(axis=(1, 3))
    paper = np.median(np.concatenate([grey[0], grey[-1]]))
    contrast = np.abs(grey - paper)
    ink = contrast > contrast.max() * _INK_SHARE
    if rows % 2:
        ink = np.vstack([ink, np.zeros((1, columns), dtype=bool)])
    cells = ink[0::2].astype(int) + 2 * ink[1::2].astype(int)
    drawn = ["".join(GLYPHS[cell] for cell in row).rstrip() for row in cells]
    while drawn and not drawn[0]:
        drawn.pop(0)
    while drawn and not drawn[-1]:
        drawn.pop()
    return drawn
