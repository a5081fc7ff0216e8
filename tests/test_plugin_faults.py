"""Plugins that are missing, broken or unfit: the first use raises and names cause and fix, and `import torch`
keeps working. The libraries are made here; each case is a process of its own.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from child_process import run

PROBE = """
import torch
assert torch.ones(2).sum() == 2
print("AVAILABLE", torch.tpu.is_available(), torch.tpu.device_count())
try:
    torch.ones(1, device="tpu")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
assert (torch.ones(2) + 1).sum() == 4
"""

# The head of every PJRT method table; methods take one struct and return an error or null.
TABLE = """
#include <stddef.h>
typedef void *(*Method)(void *);
struct Api { size_t size; void *extensions; size_t version_size; void *version_extensions; int major, minor;
             void (*destroy)(void *); Method message, code, initialize, rest[200]; };
struct Message { size_t size; void *extensions; const void *error; const char *text; size_t length; };
struct Code { size_t size; void *extensions; const void *error; unsigned code; };
static int failure;
static void destroy(void *args) {}
static void *message(void *args) {
  struct Message *m = args; m->text = "no chip answers"; m->length = 15; return 0; }
static void *code(void *args) { ((struct Code *)args)->code = 14; return 0; }
static void *initialize(void *args) { return INITIALIZE; }
const struct Api *GetPjrtApi(void) {
  static struct Api api = {sizeof(struct Api), 0, 24, 0, 0, MINOR, destroy, message, code, initialize};
  return &api;
}
"""


@pytest.fixture
def library(tmp_path):
    """Compile C source to a shared library and return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def build(source: str, **macros: str) -> str:
        path = tmp_path / "plugin.so"
        (tmp_path / "plugin.c").write_text(source)
        defines = [f"-D{name}={value}" for name, value in macros.items()]
        subprocess.run(
            [compiler, "-shared", "-fPIC", *defines, "-o", path, tmp_path / "plugin.c"], check=True
        )
        return str(path)

    return build


def refused(plugin: str, *words: str) -> None:
    """The device does not start with `plugin`; the error has these words and a fix."""
    done = run(PROBE, env={"TORCH_PJRT_PLUGIN": plugin})
    error = done.stdout.splitlines()[-1]
    assert error.startswith("RuntimeError: "), done.stdout
    for word in (plugin, "Fix: ", "TORCH_PJRT_PLUGIN", *words):
        assert word in error, error
    assert "Traceback" not in done.stderr
    assert done.stderr.count("torch-pjrt:") == 0, done.stderr


def test_a_file_that_is_no_library(tpu, tmp_path):
    path = tmp_path / "plugin.so"
    path.write_text("not a library")
    refused(str(path), "cannot be loaded")


def test_a_library_that_is_no_plugin(tpu, library):
    refused(library("int answer(void) { return 42; }"), "not a PJRT plugin", "GetPjrtApi")


def test_a_plugin_without_a_table(tpu, library):
    refused(library("void *GetPjrtApi(void) { return 0; }"), "GetPjrtApi returned null")


def test_too_old_an_api(tpu, library):
    refused(library(TABLE, MINOR="40", INITIALIZE="0"), "has API 0.40", "0.81")


def test_a_plugin_that_fails_to_initialise(tpu, library):
    refused(
        library(TABLE, MINOR="90", INITIALIZE="&failure"),
        "failed to initialise",
        "UNAVAILABLE",
        "no chip answers",
    )


def test_a_plugin_without_methods(tpu, library):
    refused(library(TABLE, MINOR="90", INITIALIZE="0"), "PJRT_Client_Create")


def test_a_library_that_needs_another(tpu, library):
    source = "int missing(void); void *GetPjrtApi(void) { return (void *)(long)missing(); }"
    refused(library(source), "cannot be loaded", "missing")


def test_no_tpu_although_libtpu_is_installed(tpu):
    pytest.importorskip("libtpu")
    done = run(PROBE, env={"TORCH_PJRT_PLUGIN": "tpu"})
    assert "AVAILABLE False 0" in done.stdout
    assert "this machine has no TPU" in done.stdout
    assert "set it to cpu" in done.stdout
    assert done.stderr.count("torch-pjrt:") == 1, done.stderr


def test_a_directory(tpu, tmp_path):
    folder = tmp_path / "plugin.so"
    folder.mkdir()
    done = run(PROBE, env={"TORCH_PJRT_PLUGIN": str(folder)})
    assert "there is no such file" in done.stdout
    assert done.stderr.count("torch-pjrt:") == 1


def test_doctor_survives_a_plugin_that_ends_the_process(tpu, library):
    plugin = library("#include <stdlib.h>\nvoid *GetPjrtApi(void) { abort(); }")
    source = "import sys; from torch_pjrt.cli import main; sys.exit(main(['doctor']))"
    done = run(source, env={"TORCH_PJRT_PLUGIN": plugin}, check=False)
    assert done.returncode == 1, done.stderr
    assert "SIGABRT" in done.stdout
    assert "fix: choose another plugin" in done.stdout


def test_a_healthy_plugin_says_nothing(tpu):
    done = run("import torch; print((torch.ones(3, device='tpu') + 1).sum().item())")
    assert done.stdout == "6.0\n"
    assert done.stderr == ""


def test_the_shim_of_this_torch_is_missing(tpu, tmp_path):
    import torch_pjrt

    package = tmp_path / "torch_pjrt"
    ignored = shutil.ignore_patterns("_shim_*", "__pycache__")
    shutil.copytree(torch_pjrt.__path__[0], package, ignore=ignored)
    (package / "_shim_1_99.so").touch()
    source = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch, torch_pjrt
        assert torch_pjrt.__path__ == [{str(package)!r}]
        assert torch.ones(2).sum() == 2
        try:
            torch_pjrt.enable()
        except RuntimeError as error:
            print(error)
    """
    done = run(source)
    assert "is not supported: torch-pjrt has shims for torch 1.99" in done.stdout
    assert "Fix: install one of these torch versions" in done.stdout
    assert done.stderr.count("torch-pjrt:") == 1, done.stderr


def test_a_shim_of_another_build(tpu, tmp_path, library):
    import torch_pjrt
    from torch_pjrt import _registration

    package = tmp_path / "torch_pjrt"
    shutil.copytree(torch_pjrt.__path__[0], package, ignore=shutil.ignore_patterns("_shim_*", "__pycache__"))
    shutil.copy(library("int answer(void) { return 42; }"), package / _registration.shim_for_torch().name)
    done = run(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        assert torch.ones(2).sum() == 2
        """
    )
    assert "does not load into torch" in done.stderr
    assert "Fix: reinstall torch-pjrt" in done.stderr
    assert done.stderr.count("torch-pjrt:") == 1, done.stderr


def test_without_a_plugin_every_use_says_why(tpu):
    source = """
    import torch
    uses = [lambda: torch.ones(1).to("tpu"), torch.tpu.init, torch.tpu.get_device_name, torch.tpu.current_stream,
            torch.tpu.memory_allocated, torch.tpu.synchronize, lambda: torch.tpu.set_device(0)]
    for use in uses:
        try:
            use()
        except RuntimeError as error:
            assert "Fix: set it to the path of a PJRT plugin" in str(error), error
        else:
            raise AssertionError("no error")
    assert not torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.tpu.device_count() == 0
    torch.manual_seed(1), torch.tpu.manual_seed_all(1), torch.tpu.empty_cache(), torch.tpu.stats()
    assert not torch.ones(2).is_pinned()
    with torch.random.fork_rng():
        torch.rand(2)
    assert len(list(torch.utils.data.DataLoader([1, 2]))) == 2
    """
    done = run(source, env={"TORCH_PJRT_PLUGIN": "/no/such/plugin.so"})
    assert done.stderr.count("torch-pjrt:") == 1
    assert "..\n" not in done.stderr
