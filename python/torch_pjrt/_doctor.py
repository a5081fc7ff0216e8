"""`torch-pjrt doctor`: what is installed, what will be used, what is wrong and how to put it right."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from . import __version__, _hardware, _plugins, _registration

# Every variable that changes what the device does.
ENVIRONMENT = (
    "TORCH_PJRT_PLUGIN",
    "TORCH_PJRT_NUM_DEVICES",
    "TORCH_PJRT_CACHE_DIR",
    "TORCH_PJRT_MAX_PROGRAMS",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "ACCELERATE_TORCH_DEVICE",
    "TPU_LIBRARY_PATH",
    "TPU_VISIBLE_CHIPS",
    "TPU_SKIP_MDS_QUERY",
    "ALLOW_MULTIPLE_LIBTPU_LOAD",
    "CUDA_VISIBLE_DEVICES",
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
)

# A libtpu that finds no metadata server retries for minutes.
PROBE_TIMEOUT_SECONDS = 120

_PROBE = """
import json, sys, torch, torch_pjrt
torch_pjrt.enable()
from torch_pjrt import _core
torch.tpu.init()
count = torch.tpu.device_count()
result = {
    "plugin": _core.plugin_info(),
    "devices": [_core.device_info(i) for i in range(count)],
    "memory": [torch.tpu.mem_get_info(i) for i in range(count)],
    "sum": (torch.ones(2, 3, device="tpu") + 1).sum().item(),
}
print("PROBE" + json.dumps(result, default=str))
"""


@dataclass
class Report:
    """facts: (topic, text) in the order of printing. problems: (cause, fix). data: the same for machines."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def problem(self, message: str, fix: str = "") -> None:
        """Note a problem; a message that ends in "Fix: ..." carries its own."""
        cause, separator, own_fix = message.partition("Fix: ")
        self.problems.append((cause.strip().rstrip("."), own_fix if separator else fix))


def size_text(count: int) -> str:
    """Bytes for people: "3.4 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def examine() -> Report:
    """Look at everything. The device itself is tried in a process of its own: a plugin may end the process it
    is in.
    """
    report = Report()
    _examine_versions(report)
    _examine_conflicts(report)
    choice = _examine_plugins(report)
    _examine_cache(report)
    _examine_environment(report)
    if choice.candidates and not report.problems:
        _examine_device(report)
    return report


def _examine_versions(report: Report) -> None:
    import torch

    report.facts.append(
        ("torch-pjrt", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    )
    minors = [f"{a}.{b}" for a, b in _registration.shims()]
    report.facts.append(("torch", f"{torch.__version__}; shims for torch {', '.join(minors) or 'none'}"))
    report.data.update(version=__version__, torch=torch.__version__, shims=minors)
    try:
        _registration.shim_for_torch()
        from . import _core

        report.facts.append(("core", f"{_core.core_version()}, lowerings {_core.lowering_version()[:12]}"))
    except _registration.RegistrationError as error:
        report.problem(str(error))
    except ImportError as error:
        report.problem(
            f"the compiled part does not load: {error}", "reinstall torch-pjrt for this Python and platform"
        )


def _examine_conflicts(report: Report) -> None:
    try:
        _registration._check_conflicts()
    except _registration.RegistrationError as error:
        report.problem(str(error))
        report.facts.append(("conflicts", "see below"))
    else:
        report.facts.append(("conflicts", "none"))
    other = _hardware.other_accelerator()
    if other and _registration.state.dormant:
        report.facts.append(
            ("accelerator", f"{other}: tpu stands back; torch_pjrt.enable() or TORCH_PJRT_PLUGIN turns it on")
        )
    report.data.update(other_accelerator=other, torch_tpu=_registration.competing_distribution())
    if _registration.state.error and not report.problems:
        report.problem(_registration.state.error)


def _examine_plugins(report: Report) -> _plugins.Choice:
    choice = _plugins.choose()
    chips = _hardware.tpu_chips()
    report.facts.append(("TPU chips", f"{len(chips)} ({chips[0]})" if chips else "none on this machine"))
    for kind, paths in _plugins.installed().items():
        for path in paths:
            used = " (used)" if choice.candidates and choice.candidates[0][1] == path else ""
            report.facts.append((f"{kind} plugin", path + used))
    if choice.candidates and choice.candidates[0][0] == "custom":
        report.facts.append(("plugin", f"{choice.candidates[0][1]} (used, from TORCH_PJRT_PLUGIN)"))
    if choice.problem:
        report.problem(choice.problem)
    for problem, fix in _plugins.environment_problems():
        report.problem(problem, fix)
    report.data.update(tpu_chips=chips, plugin=choice.candidates[0] if choice.candidates else None)
    return choice


def _examine_cache(report: Report) -> None:
    path = _registration.cache_dir()
    if path is None:
        report.facts.append(("cache", "off (TORCH_PJRT_CACHE_DIR)"))
        return
    try:
        if _registration.state.registered:
            from . import _core

            info = _core.cache_info()
            text = f"{info['path']}, {info['entries']} entries, {size_text(info['bytes'])}"
            report.data["cache"] = info
            if info.get("refused"):
                report.problem(
                    f"the cache folder {info['path']} is not used: {info['refused']}",
                    "remove it, make it yours with mode 0700, or set TORCH_PJRT_CACHE_DIR to another folder",
                )
        else:
            text = path
    except (ImportError, OSError, RuntimeError) as error:
        text = f"{path} ({error})"
    report.facts.append(("cache", text))


def _examine_environment(report: Report) -> None:
    in_force = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    report.data["environment"] = in_force
    report.facts.append(
        ("environment", " ".join(f"{k}={v}" for k, v in in_force.items()) or "no variable set")
    )


def _examine_device(report: Report) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        report.problem(
            f"the plugin did not start within {PROBE_TIMEOUT_SECONDS} s",
            "outside Google Cloud set TPU_SKIP_MDS_QUERY=1, or choose another plugin",
        )
        return
    answer = next((line[5:] for line in done.stdout.splitlines() if line.startswith("PROBE")), None)
    if answer is None:
        _examine_failure(report, done)
        return
    found = json.loads(answer)
    plugin = found["plugin"]
    report.facts.append(
        (
            "PJRT API",
            f"{plugin['api_version']}, platform {plugin['platform_name']} ({plugin['platform_version']})",
        )
    )
    for index, (device, (free, total)) in enumerate(zip(found["devices"], found["memory"], strict=True)):
        report.facts.append(
            (f"tpu:{index}", f"{device['name']}, {size_text(free)} free of {size_text(total)}")
        )
    if found["sum"] != 12:
        report.problem(f"the device computed {found['sum']} instead of 12", "report it with this output")
    report.data.update(devices=found["devices"], pjrt=plugin)


def _examine_failure(report: Report, done: subprocess.CompletedProcess) -> None:
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        report.problem(
            f"the plugin ended the process with {name}: {lines[-1] if lines else 'no message'}",
            "choose another plugin with TORCH_PJRT_PLUGIN",
        )
    else:
        report.problem(
            f"the device does not start: {lines[-1] if lines else f'exit status {done.returncode}'}",
            "choose another plugin with TORCH_PJRT_PLUGIN, or reinstall it",
        )


def render(report: Report) -> str:
    """The report as text; the last line is for scripts."""
    width = max(len(topic) for topic, _ in report.facts)
    lines = [f"{topic:<{width}}  {text}" for topic, text in report.facts]
    for number, (cause, fix) in enumerate(report.problems, 1):
        lines.append(f"\nproblem {number}: {cause}")
        if fix:
            lines.append(f"  fix: {fix}")
    plugin = report.data.get("plugin")
    lines.append(
        f"\ndoctor: problems={len(report.problems)} plugin={plugin[0] if plugin else 'none'} "
        f"devices={len(report.data.get('devices', []))}"
    )
    return "\n".join(lines)
