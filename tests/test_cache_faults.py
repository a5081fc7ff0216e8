"""The cache folder when it is damaged, foreign, old or open to others: such entries are ignored and replaced,
such folders are not used. Each step is a process of its own.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from child_process import counting_environment, run, run_with_injection

WORK = """
import json, torch
x = torch.arange(12.0).reshape(3, 4).to("tpu")
values = [(x * 2 + 1).sum(), x.tanh().sum(), (x @ x.T).sum(), x.softmax(1).sum(), x.sin().sum()]
expected = torch.arange(12.0).reshape(3, 4)
expected = [(expected * 2 + 1).sum(), expected.tanh().sum(), (expected @ expected.T).sum(),
            expected.softmax(1).sum(), expected.sin().sum()]
for value, other in zip(values, expected):
    torch.testing.assert_close(value.cpu(), other)
print(json.dumps({"counted": counted(), "stats": torch.tpu.stats()["compiles"]}))
"""


def work(folder: Path) -> int:
    """Run the programs with this cache folder and return how many were compiled, counted at the plugin."""
    done = run_with_injection(WORK, env={"TORCH_PJRT_CACHE_DIR": str(folder)})
    report = json.loads(done.stdout)
    assert report["stats"] == report["counted"][0]
    return report["counted"][0]


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".plan", ".exe"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that holds the programs, and how many there are."""
    counting_environment()
    folder = tmp_path_factory.mktemp("cache") / "torch_pjrt"
    compiles = work(folder)
    assert compiles >= 5
    assert len([path for path in entries(folder) if path.suffix == ".exe"]) == compiles
    return folder, compiles


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped": lambda path: flip(path, -1),
    "checksum": lambda path: flip(path, 20),
    "older": lambda path: flip(path, 7),  # the last byte of the magic number is the format's version
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "headless": lambda path: path.write_bytes(b"tp"),
    "empty": lambda path: path.write_bytes(b""),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "link": lambda path: (
        path.rename(path.with_suffix(".moved")),
        path.symlink_to(path.with_suffix(".moved")),
    ),
}


def test_damaged_entries_are_ignored_and_replaced(tpu, filled):
    folder, compiles = filled
    replaceable = [name for name in DAMAGES if name not in ("folder", "link")]
    damaged = entries(folder)
    for i, path in enumerate(damaged):
        DAMAGES[replaceable[i % len(replaceable)]](path)
    assert work(folder) == compiles
    assert work(folder) == 0


def test_entries_of_another_user_are_ignored_and_replaced(tpu, filled):
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    folder, compiles = filled
    for path in entries(folder):
        os.chown(path, 12345, 12345)
    assert work(folder) == compiles
    assert {path.stat().st_uid for path in entries(folder)} == {0}
    assert work(folder) == 0


def test_links_and_folders_in_the_place_of_entries(tpu, filled):
    folder, compiles = filled
    for i, path in enumerate(entries(folder)):
        DAMAGES["folder" if i % 2 else "link"](path)
    assert work(folder) >= compiles / 2
    for path in folder.rglob("*"):
        if path.suffix in (".plan", ".exe") and path.is_dir():
            path.rmdir()
    work(folder)
    assert work(folder) == 0


def test_entries_of_another_environment_are_not_used(tpu, filled):
    folder, compiles = filled
    (environment,) = folder.iterdir()
    environment.rename(folder / "0123456789abcdef")
    assert work(folder) == compiles


def doctor(folder: Path) -> str:
    source = "import sys; from torch_pjrt.cli import main; sys.exit(main(['doctor']))"
    done = run(source, env={"TORCH_PJRT_CACHE_DIR": str(folder)}, check=False)
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_a_folder_that_others_can_write_is_refused(tpu, filled):
    folder, compiles = filled
    before = {path: path.stat().st_mtime_ns for path in entries(folder)}
    folder.chmod(0o777)
    try:
        assert work(folder) == compiles
        assert {path: path.stat().st_mtime_ns for path in entries(folder)} == before
        report = doctor(folder)
        assert "can be written by others" in report
        assert "fix: remove it, make it yours with mode 0700, or set TORCH_PJRT_CACHE_DIR" in report
    finally:
        folder.chmod(0o700)


def test_a_folder_of_another_user_is_refused(tpu, filled):
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder, compiles = filled
    os.chown(folder, 12345, 12345)
    try:
        assert work(folder) == compiles
        assert "belongs to user 12345, not to 0" in doctor(folder)
    finally:
        os.chown(folder, 0, 0)


def test_a_file_in_the_place_of_the_folder(tpu, tmp_path):
    path = tmp_path / "cache"
    path.write_text("not a folder")
    assert work(path) >= 5
    assert "is not a directory" in doctor(path)
    assert path.read_text() == "not a folder"


def test_new_folders_are_closed_to_others(tpu, filled):
    folder, _ = filled
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        assert path.stat().st_mode & 0o777 == 0o700, path


def test_processes_share_a_cache_that_they_write_at_once(tpu, tmp_path):
    folder = tmp_path / "cache"
    counting_environment()
    failures = []

    def one() -> None:
        try:
            work(folder)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert work(folder) == 0
    assert not [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".plan", ".exe")]
