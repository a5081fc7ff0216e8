"""The command `torch-pjrt`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

_DESCRIPTION = """\
PyTorch on any PJRT accelerator, as the device `tpu`.

  model.to("tpu")              is all that a program needs: `import torch` registers the device
  TORCH_PJRT_PLUGIN=cpu        choose the plugin: cpu, tpu, cuda, or the path of a library
  TORCH_PJRT_NUM_DEVICES=4     virtual devices on the CPU plugin
  TORCH_PJRT_CACHE_DIR=PATH    where compiled programs are kept (empty: nowhere)
  TORCH_PJRT_MAX_PROGRAMS=4096 compiled programs kept in memory
"""


def _doctor(arguments: argparse.Namespace) -> int:
    from . import _doctor as doctor

    report = doctor.examine()
    if arguments.json:
        problems = [{"cause": cause, "fix": fix} for cause, fix in report.problems]
        print(json.dumps({**report.data, "problems": problems}, indent=2, default=str))
    else:
        print(doctor.render(report))
    return 1 if report.problems else 0


def _cache(arguments: argparse.Namespace) -> int:
    from . import _registration
    from ._doctor import size_text

    _registration.register()
    from . import _core

    info = _core.cache_info()
    if not info["enabled"]:
        print(f"cache: off{' (' + info['refused'] + ')' if info.get('refused') else ''}")
        return 0
    if arguments.action == "clear":
        print(f"cache: removed={_core.clear_cache()} path={info['path']}")
    else:
        print(f"cache: entries={info['entries']} size={size_text(info['bytes'])} path={info['path']}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="torch-pjrt", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="say what is installed and used; name what is wrong and its fix (exit status 1)",
        description="Looks at torch, the shims, the plugins, the devices and their memory, the cache, the "
        "environment and conflicts. Starts the device in a process of its own. "
        "Exit status 1 when something is wrong.",
    )
    doctor.add_argument("--json", action="store_true", help="print everything as JSON")
    doctor.set_defaults(run=_doctor)
    cache = commands.add_parser(
        "cache",
        help="show or empty the folder of compiled programs",
        description="Compiled programs are kept in ~/.cache/torch_pjrt: a second run compiles nothing.",
    )
    cache.add_argument(
        "action", choices=("list", "clear"), help="list: how many and how large; clear: remove all"
    )
    cache.set_defaults(run=_cache)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; problems are printed with their fix, not as tracebacks."""
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (RuntimeError, OSError) as error:
        print(f"torch-pjrt: {error}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
