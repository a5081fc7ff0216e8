"""Where in the user's code an operator was called, for warnings and errors."""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _library_folders() -> tuple[str, ...]:
    torch = sys.modules.get("torch")
    folders = [_HERE]
    if torch is not None and torch.__file__:
        folders.append(os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
    return tuple(folders)


def user_location() -> str | None:
    """The innermost frame outside torch and torch_pjrt: "file.py:12 in forward". None when there is none."""
    folders = _library_folders()
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(folders) and not filename.startswith("<frozen"):
            return f"{filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None
