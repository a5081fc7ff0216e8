"""What `import torch` does with us installed: quick, silent when all is well, else one warning.

Each case is a process of its own, with the stand-in for the extension and an entry point made for the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = HERE.parent / "python"


@pytest.fixture
def run(tmp_path):
    """Run Python source with torch-pjrt "installed": the package with a shim file for this torch,
    the entry point, and the stand-in core. Returns (result printed as JSON, warnings on stderr)."""
    import torch

    site = tmp_path / "site"
    site.mkdir()
    (site / "torch_pjrt").symlink_to(PYTHON / "torch_pjrt")
    (site / "torch_tpu").symlink_to(PYTHON / "torch_tpu")
    info = site / "torch_pjrt_autoload_test-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-pjrt-autoload-test\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_pjrt_test = torch_pjrt:_autoload\n")
    minor = tuple(map(int, torch.__version__.split(".")[:2]))

    def run(
        source: str, *, env: dict | None = None, shims: list | None = None, plugin: bool = True, args=()
    ) -> tuple:
        found = {minor: "/nowhere/shim.so"} if shims is None else dict.fromkeys(shims, "/nowhere/shim.so")
        prelude = f"""
            import sys, json, os
            sys.path[:0] = [{str(site)!r}, {str(HERE)!r}]
            import stub_core
            CORE = stub_core.install()
            import importlib.abc, importlib.util
            # Changed when they load: this machine's shims, plugins and devices are not the test's.
            class Patch(importlib.abc.MetaPathFinder):
                def find_spec(self, name, path=None, target=None):
                    if name.removeprefix("torch_pjrt.") not in ("_registration", "_plugins", "_hardware"):
                        return None
                    sys.meta_path.remove(self)
                    spec = importlib.util.find_spec(name)
                    sys.meta_path.insert(0, self)
                    execute = spec.loader.exec_module
                    def exec_module(module):
                        execute(module)
                        patch(module)
                    spec.loader.exec_module = exec_module
                    return spec
            def patch(module):
                from pathlib import Path
                if module.__name__.endswith("_registration"):
                    module.shims = lambda folder=None: {{k: Path(v) for k, v in {found!r}.items()}}
                    extra(module)
                elif module.__name__.endswith("_plugins"):
                    module.cpu_libraries = lambda: ["/nowhere/cpu.so"] if {plugin} else []
                    extra(module)
                else:
                    module.other_accelerator = lambda: None
                    module.tpu_chips = lambda pci_root="": []
                    extra(module)
            def extra(module): pass
            sys.meta_path.insert(0, Patch())
        """
        code = textwrap.dedent(prelude) + textwrap.dedent(source)
        environ = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TORCH_PJRT", "TORCH_DEVICE", "ACCELERATE"))
        }
        environ.update(env or {})
        done = subprocess.run(
            [sys.executable, *args, "-c", code],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        ours = [line for line in done.stderr.splitlines() if "torch-pjrt:" in line]
        return (json.loads(lines[-1]) if lines else None), ours

    return run


STATE = """
import torch
print(json.dumps({
    "name": torch._C._get_privateuse1_backend_name(),
    "module": hasattr(torch, "tpu"),
    "available": hasattr(torch, "tpu") and torch.tpu.is_available(),
    "started": CORE.state.started,
    "accelerate": os.environ.get("ACCELERATE_TORCH_DEVICE"),
    "options": CORE.state.initialized_with and CORE.state.initialized_with[1],
}, default=str))
"""


def test_import_torch_registers_the_device_and_starts_nothing(run):
    result, warnings = run(STATE)
    assert result["name"] == "tpu"
    assert result["module"]
    assert result["available"]
    assert not result["started"]
    assert result["accelerate"] == "tpu"
    assert result["options"]["register_hooks"]
    assert result["options"]["plugin_candidates"] == [["cpu", "/nowhere/cpu.so"]]
    assert warnings == []


def test_the_users_placement_stands(run):
    result, _ = run(STATE, env={"ACCELERATE_TORCH_DEVICE": "cpu"})
    assert result["available"]
    assert result["accelerate"] == "cpu"


def test_methods_are_generated(run):
    result, _ = run(
        """
        import torch
        import torch.tpu.memory, torch.tpu.random
        print(json.dumps({
            "tensor": hasattr(torch.Tensor, "tpu") and torch.ones(1).is_tpu is False,
            "module": hasattr(torch.nn.Module, "tpu"),
            "storage": hasattr(torch.UntypedStorage, "tpu") and hasattr(torch.UntypedStorage, "is_tpu"),
            "device": str(torch.device("tpu", 1)),
            "same": torch.tpu.memory is sys.modules["torch_pjrt.tpu.memory"],
            "get": torch.get_device_module("tpu") is torch.tpu,
            "autocast": str(torch.get_autocast_dtype("tpu")),
        }))
        """
    )
    assert result == {
        "tensor": True,
        "module": True,
        "storage": True,
        "device": "tpu:1",
        "same": True,
        "get": True,
        "autocast": "torch.bfloat16",
    }


def test_no_thread_is_started(run):
    result, _ = run(
        """
        import torch
        print(json.dumps({"threads": len(os.listdir("/proc/self/task"))}))
        """,
        env={"OMP_NUM_THREADS": "1"},
    )
    before, _ = run(
        """
        import torch
        print(json.dumps({"threads": len(os.listdir("/proc/self/task"))}))
        """,
        env={"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert result["threads"] == before["threads"]


def test_unsupported_torch_is_one_warning_that_names_the_versions(run):
    result, warnings = run(STATE, shims=[(2, 3), (2, 4)])
    assert result["name"] == "privateuseone"
    assert not result["module"]
    assert len(warnings) == 1
    assert "2.3, 2.4" in warnings[0]
    assert "Fix:" in warnings[0]


def test_warnings_as_errors_do_not_break_import(run):
    result, warnings = run(STATE, shims=[], args=("-W", "error::RuntimeWarning"))
    assert not result["module"]
    assert len(warnings) == 1


def test_a_broken_extension_is_one_warning(run):
    result, warnings = run("sys.modules['torch_pjrt._core'] = None\n" + STATE)
    assert not result["module"]
    assert len(warnings) == 1
    assert "does not load" in warnings[0]
    assert "Fix:" in warnings[0]


def test_any_failure_is_one_warning(run):
    _, warnings = run("def fail(*a, **k): raise KeyError('surprise')\nCORE.initialize = fail\n" + STATE)
    assert len(warnings) == 1
    assert "surprise" in warnings[0]
    assert "torch-pjrt doctor" in warnings[0]


def test_google_torch_tpu_beside_us_is_named_with_the_fix(run, tmp_path):
    info = tmp_path / "site" / "torch_tpu-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-tpu\nVersion: 0.2.0\n")
    result, warnings = run(STATE)
    assert not result["module"]
    assert len(warnings) == 1
    assert "torch-tpu 0.2.0" in warnings[0]
    assert "pip uninstall torch-tpu" in warnings[0]


def test_another_backend_has_the_place(run):
    result, warnings = run(
        "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\nimport torch\n"
        "torch.utils.rename_privateuse1_backend('other')\nimport torch_pjrt\n" + STATE
    )
    assert result["name"] == "other"
    assert len(warnings) == 1
    assert "`other`" in warnings[0]


def test_without_a_plugin_import_is_silent_and_nothing_is_available(run):
    result, warnings = run(STATE, plugin=False)
    assert result["module"]
    assert not result["available"]
    assert result["accelerate"] is None
    assert "torch-pjrt[cpu]" in result["options"]["no_plugin_message"]
    assert warnings == []


@pytest.mark.parametrize("value", ["/no/such/plugin.so", "nonsense"])
def test_a_wrong_plugin_setting_is_one_warning(run, value):
    result, warnings = run(STATE, env={"TORCH_PJRT_PLUGIN": value})
    assert not result["available"]
    assert len(warnings) == 1
    assert value in warnings[0]


def test_a_wrong_number_of_devices_is_one_warning(run):
    result, warnings = run(STATE, env={"TORCH_PJRT_NUM_DEVICES": "many"})
    assert result["options"]["num_devices"] == 1
    assert len(warnings) == 1
    assert "TORCH_PJRT_NUM_DEVICES=many" in warnings[0]


CUDA = """
def extra(module):
    if module.__name__.endswith("_hardware"):
        module.other_accelerator = lambda: "CUDA"
"""


def test_a_cuda_user_notices_nothing(run):
    result, warnings = run(CUDA + STATE)
    assert result["name"] == "privateuseone"
    assert not result["module"]
    assert result["accelerate"] is None
    assert warnings == []


def test_a_cuda_user_may_enable_it(run):
    result, _ = run(CUDA + "import torch_pjrt; torch_pjrt.enable()\n" + STATE)
    assert result["available"]


def test_a_cuda_user_may_name_a_plugin(run):
    result, _ = run(CUDA + STATE, env={"TORCH_PJRT_PLUGIN": "cpu"})
    assert result["available"]


def test_a_tpu_without_libtpu_says_so(run):
    source = """
def extra(module):
    if module.__name__.endswith("_hardware"):
        module.tpu_chips = lambda pci_root="": ["v5e"]
    if module.__name__.endswith("_plugins"):
        module.tpu_library = lambda: None
"""
    result, _ = run(source + STATE)
    assert not result["available"]
    assert "torch-pjrt[tpu]" in result["options"]["no_plugin_message"]


def test_explicit_import_without_autoload(run):
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    result, warnings = run(STATE, env=off)
    assert not result["module"]
    result, warnings = run("import torch_pjrt\n" + STATE, env=off)
    assert result["available"]
    assert warnings == []


def test_importing_us_before_torch(run):
    result, warnings = run("import torch_pjrt\n" + STATE)
    assert result["available"]
    assert warnings == []


def test_torch_tpu_compatibility_package(run):
    result, _ = run("from torch_tpu._loader import load\nload(); load()\n" + STATE)
    assert result["available"]


def test_autoload_is_quick(run):
    result, _ = run(
        """
        import time
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        import torch
        start = time.process_time()
        import torch_pjrt
        seconds = time.process_time() - start
        print(json.dumps({"seconds": seconds, "decompose": "torch_pjrt._decompose" in sys.modules}))
        """
    )
    assert result["seconds"] < 0.3
    assert not result["decompose"]
