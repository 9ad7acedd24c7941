"""Pictures of numbers, drawn by matplotlib, which is imported only if one is asked for."""

from pathlib import Path
from typing import Any

from common.errors import UserError

FORMATS = (".svg", ".png", ".pdf")
COLUMNS = 4  # of panels


def new_picture(path: str, panels: int = 1, columns: int = COLUMNS) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure and its axes, in rows of `columns`.

    Raises:
        UserError: if it could not be saved at `path`, or matplotlib is not installed.
    """
    place = Path(path)
    if place.suffix not in FORMATS or not place.absolute().parent.is_dir():
        raise UserError(
            f"--picture {path!r} should name a file that ends in {', '.join(FORMATS)}, in an "
            f"existing folder"
        )
    if place.exists():
        raise UserError(f"--picture {path} exists; name a file that does not")
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--picture is drawn by matplotlib: pip install matplotlib") from None
    rcParams["svg.hashsalt"] = "glassgpt"  # the same picture each time
    rcParams["svg.fonttype"] = "none"  # words stay words
    columns = min(panels, columns)
    rows = -(-panels // columns)
    size = (7.0, 4.5) if panels == 1 else (max(7.0, 3.0 * columns), 2.7 * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes[:panels]


def save_picture(figure: Any, path: str) -> None:
    """Write the picture, and print where."""
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    print(f"picture: {path}")
