"""After the app is stopped in any way, no files are left, nothing hangs, nothing aborts."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from diffem import InputError
from diffem.app import folder, server

from .stopping import has_ipv6

ROOT = Path(__file__).parents[2]
needs_gradio = pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")


@pytest.fixture(scope="module")
def stopped(run, tmp_path_factory):
    command = [sys.executable, "-m", "tests.app.stopping", str(run), str(tmp_path_factory.mktemp("stopping"))]
    # a session of its own, so that the apps that it started end with it
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return {row.pop("name"): row for row in map(json.loads, output.splitlines())}


@needs_gradio
class TestStops:
    @pytest.mark.parametrize(
        ("case", "code"),
        [("busy SIGINT", 0), ("SIGTERM", 128 + signal.SIGTERM), ("SIGHUP", 128 + signal.SIGHUP)],
    )
    def test_a_signal_stops_it_and_leaves_no_files(self, stopped, case, code):
        """Ctrl-C arrives during an endless computation, so the app ends only if it does not wait for it."""
        ended = stopped[case]
        assert ended["code"] == code
        assert ended["left"] == []
        assert not [word for word in ("terminate", "Traceback", "Fatal", "abort") if word in ended["said"]], ended
        assert ("computing" in ended["said"]) == case.startswith("busy")

    def test_the_next_start_removes_the_files_of_a_killed_app(self, stopped):
        assert stopped["killed"]["code"] == -signal.SIGKILL
        (before,) = stopped["killed"]["left"]
        (after,) = stopped["started after"]["left"]
        assert before != after

    def test_signals_that_are_ignored_from_the_start_stay_ignored(self, stopped):
        """A hangup as under nohup, Ctrl-C as in a background job. SIGTERM still ends the app."""
        ended = stopped["after, signals ignored"]
        assert ended["code"] == 128 + signal.SIGTERM
        assert ended["left"] == []

    def test_a_child_that_hangs_is_ended_and_named(self, stopped):
        """A test of these tests: the other cases still return their results."""
        assert stopped["hung"] == {"code": -signal.SIGKILL, "said": "(killed: it had hung)", "left": []}

    @pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
    def test_an_ipv6_address_is_served_and_printed_as_a_url(self, stopped):
        """The page was fetched from there, with its address as `Origin`, before the signal."""
        assert "http://[::1]:" in stopped["SIGTERM"]["said"]

    def test_a_refused_start_leaves_nothing(self, stopped):
        assert stopped["refused"]["code"] == 2
        assert "cannot serve on no-such-host.invalid" in stopped["refused"]["said"]
        assert stopped["refused"]["left"] == []


class TestFolder:
    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        return tmp_path

    def test_folders_of_dead_processes_are_removed_and_one_in_use_stays(self, temporary):
        dead = temporary / "diffem-app-dead"
        (dead / "deep").mkdir(parents=True)
        (dead / "deep" / "x.png").write_bytes(b"x")
        others = temporary / "somebody-elses"
        others.mkdir()
        (temporary / "diffem-app-link").symlink_to(others)
        (temporary / "diffem-app-file").write_text("x")
        with folder.upload_folder() as first:
            assert not dead.exists()
            with folder.upload_folder() as second:
                assert first.is_dir()
                assert second.is_dir()
                assert first != second
            assert not second.exists()
        assert not first.exists()
        assert others.is_dir()
        assert sorted(p.name for p in temporary.iterdir()) == ["diffem-app-file", "diffem-app-link", "somebody-elses"]

    def test_the_folder_is_removed_after_an_error(self):
        def fail():
            with folder.upload_folder() as path:
                (path / "x").write_text("x")
                raise KeyError(path)

        with pytest.raises(KeyError) as error:
            fail()
        assert not error.value.args[0].exists()

    def test_abandoned_files_are_swept_and_others_stay(self):
        with folder.upload_folder() as path:
            for name in ("old", "new"):
                (path / name).mkdir()
                (path / name / "x.png").write_bytes(b"x")
            os.utime(path / "old" / "x.png", (0, 0))
            folder.sweep(path, 300)
            assert [p.name for p in path.iterdir()] == ["new"]
            assert (path / "new" / "x.png").is_file()


class TestAddresses:
    def test_the_system_chooses_a_port(self):
        sockets = server.listen("127.0.0.1", 0)
        assert sockets[0].getsockname()[1] > 0
        for s in sockets:
            s.close()

    def test_a_port_in_use_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(InputError, match=f"cannot serve on 127.0.0.1, port {port}: .*in use"):
                server.listen("127.0.0.1", port)

    def test_a_name_with_several_addresses_gets_one_port(self):
        sockets = server.listen("localhost", 0)
        assert len({s.getsockname()[1] for s in sockets}) == 1
        for s in sockets:
            s.close()

    def test_invalid_hosts_are_refused(self):
        for host in ("no-such-host.invalid", "::1::2", "999.0.0.1"):
            with pytest.raises(InputError, match="cannot serve on"):
                server.listen(host, 0)

    def test_the_address_can_be_opened_in_a_browser(self):
        assert server.address_of("127.0.0.1", 7860) == "http://127.0.0.1:7860/"
        assert server.address_of("::1", 7860) == "http://[::1]:7860/"
        assert server.address_of("::", 1) == "http://[::1]:1/"
        assert server.address_of("0.0.0.0", 1) == "http://127.0.0.1:1/"
        assert server.address_of("localhost", 1) == "http://localhost:1/"
