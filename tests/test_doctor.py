"""The command line: what it says, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from torch_pjrt import _doctor, _hardware, _plugins, _registration, cli


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "torch_pjrt.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **environment},
    )


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for word in ('model.to("tpu")', "TORCH_PJRT_PLUGIN", "doctor", "cache"):
        assert word in text


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2


def test_problems_carry_their_fix():
    report = _doctor.Report()
    report.problem("no plugin is installed. Fix: pip install x")
    report.problem("the cache is not used", "remove it")
    report.facts.append(("torch", "2.15"))
    text = _doctor.render(report)
    assert "problem 1: no plugin is installed\n  fix: pip install x" in text
    assert "problem 2: the cache is not used\n  fix: remove it" in text
    assert text.splitlines()[-1] == "doctor: problems=2 plugin=none devices=0"


def test_sizes():
    assert _doctor.size_text(0) == "0 B"
    assert _doctor.size_text(3 * 2**20) == "3.0 MiB"
    assert _doctor.size_text(2**50) == "1024.0 TiB"


# Choosing a plugin --------------------------------------------------------------------------------


@pytest.fixture
def no_tpu(monkeypatch):
    monkeypatch.setattr(_hardware, "tpu_chips", lambda *a: [])
    monkeypatch.delenv("TORCH_PJRT_PLUGIN", raising=False)
    monkeypatch.delenv("TORCH_PJRT_NUM_DEVICES", raising=False)


def test_cpu_when_there_is_no_tpu(monkeypatch, no_tpu):
    monkeypatch.setattr(_plugins, "cpu_libraries", lambda: ["/a.so", "/b.so"])
    choice = _plugins.choose()
    assert choice.candidates == (("cpu", "/a.so"), ("cpu", "/b.so"))
    assert choice.num_devices == 1
    monkeypatch.setenv("TORCH_PJRT_NUM_DEVICES", "4")
    assert _plugins.choose().num_devices == 4


def test_tpu_when_a_chip_is_present(monkeypatch, no_tpu):
    monkeypatch.setattr(_hardware, "tpu_chips", lambda *a: ["v5e"] * 4)
    monkeypatch.setattr(_plugins, "tpu_library", lambda: "/libtpu.so")
    monkeypatch.setenv("TORCH_PJRT_NUM_DEVICES", "4")
    assert _plugins.choose().candidates == (("tpu", "/libtpu.so"),)
    assert _plugins.choose().num_devices == 1
    monkeypatch.setattr(_plugins, "tpu_library", lambda: None)
    assert not _plugins.choose().candidates
    assert "torch-pjrt[tpu]" in _plugins.choose().problem


def test_no_plugin_at_all(monkeypatch, no_tpu):
    monkeypatch.setattr(_plugins, "cpu_libraries", list)
    assert _plugins.choose().num_devices == 0
    assert "torch-pjrt[cpu]" in _plugins.choose().problem


def test_a_path_and_a_wrong_path(monkeypatch, no_tpu, tmp_path):
    library = tmp_path / "my_plugin.so"
    monkeypatch.setenv("TORCH_PJRT_PLUGIN", str(library))
    assert "no such file" in _plugins.choose().problem
    library.touch()
    assert _plugins.choose().candidates == (("custom", str(library)),)


def test_packages_are_found_without_importing_them(monkeypatch, tmp_path):
    package = tmp_path / "fastatomstruct_xla_cpu"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "libpjrt_cpu.so").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(
        sys.modules, "fastatomstruct_xla_cpu", raising=False
    )  # another test may have loaded the plugin
    assert str(package / "libpjrt_cpu.so") in _plugins.cpu_libraries()


def test_chips_are_told_from_network_cards(tmp_path):
    for name, vendor, device in [
        ("a", "0x1ae0", "0x0063"),
        ("b", "0x1ae0", "0x0042"),
        ("c", "0x10de", "0x0063"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(f"0x{int(device, 16):04x}\n")
    assert _hardware.tpu_chips(str(tmp_path)) == ["v5e"]


def test_shims_are_found_by_name(tmp_path):
    for name in ("_shim_2_11.so", "_shim_2_15.so", "_shim_x.so", "_core.abi3.so"):
        (tmp_path / name).touch()
    assert list(_registration.shims(tmp_path)) == [(2, 11), (2, 15)]


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", "/x/y")
    assert _registration.cache_dir() == "/x/y"
    monkeypatch.setenv("TORCH_PJRT_CACHE_DIR", "")
    assert _registration.cache_dir() is None
    monkeypatch.delenv("TORCH_PJRT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert _registration.cache_dir() == "/cache/torch_pjrt"


# The whole command --------------------------------------------------------------------------------


def test_doctor_is_content(tpu):
    done = run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for topic in ("torch ", "PJRT API", "tpu:0", "cache", "environment"):
        assert topic in done.stdout
    assert done.stdout.splitlines()[-1].startswith("doctor: problems=0 plugin=")


def test_doctor_as_json(tpu):
    done = run("doctor", "--json", TORCH_PJRT_NUM_DEVICES="2")
    data = json.loads(done.stdout)
    assert data["problems"] == []
    assert len(data["devices"]) == 2
    assert data["environment"]["TORCH_PJRT_NUM_DEVICES"] == "2"


def test_doctor_names_a_wrong_path():
    done = run("doctor", TORCH_PJRT_PLUGIN="/no/such/plugin.so")
    assert done.returncode == 1
    assert "/no/such/plugin.so" in done.stdout
    assert "fix:" in done.stdout


def test_doctor_names_a_plugin_that_does_not_load(tpu, tmp_path):
    library = tmp_path / "broken.so"
    library.write_bytes(b"not a library")
    done = run("doctor", TORCH_PJRT_PLUGIN=str(library))
    assert done.returncode == 1
    assert "broken.so" in done.stdout
    assert "fix:" in done.stdout


def test_cache_list_and_clear(tpu, tmp_path):
    folder = str(tmp_path / "cache")
    subprocess.run(
        [sys.executable, "-c", "import torch; (torch.ones(3, device='tpu') + 1).cpu()"],
        env={**os.environ, "TORCH_PJRT_CACHE_DIR": folder},
        check=True,
    )
    assert "entries=" in run("cache", "list", TORCH_PJRT_CACHE_DIR=folder).stdout
    assert "removed=" in run("cache", "clear", TORCH_PJRT_CACHE_DIR=folder).stdout
    assert "entries=0" in run("cache", "list", TORCH_PJRT_CACHE_DIR=folder).stdout
