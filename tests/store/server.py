"""A real PostgreSQL server for tests, started and ended by them."""

import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

PG_NAMES = count(1)


class PostgresServer:
    """A server that listens on a Unix socket alone; not durable, since its data lives an hour."""

    def __init__(self) -> None:
        self._bin = _postgres_bin()
        # Not below pytest's folder: each pytest session closes that to other users, and a socket's
        # path may have only 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-pg-", dir="/tmp"))
        self._data = self._folder / "data"

    def start(self) -> None:
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(self._folder, "postgres", "postgres")
        self._run("initdb", "--no-sync", "--auth=trust", "--username=stoker", "--encoding=UTF8")
        self._start()

    def restart(self) -> None:
        """End every connection, and be there again."""
        self._run("pg_ctl", "--wait", "--mode=fast", "stop")
        self._start()

    def _start(self) -> None:
        # The cost of a page is that of an SSD: else plans of a small test read whole tables.
        given = "listen_addresses=", "fsync=off", "max_connections=200", "random_page_cost=1.1"
        options = " ".join([f"-k {self._folder}", *(f"-c {one}" for one in given)])
        log = self._folder / "server.log"
        self._run("pg_ctl", "--wait", f"--log={log}", f"--options={options}", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")
        shutil.rmtree(self._folder)

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{next(PG_NAMES)}"
        with psycopg.connect(
            host=str(self._folder), user="stoker", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        url = make_url(f"postgresql+psycopg://stoker@/{name}")
        return url.update_query_dict({"host": str(self._folder)}).render_as_string()

    def _run(self, program: str, *arguments: str) -> None:
        become = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
        done = subprocess.run(
            [*become, str(self._bin / program), f"--pgdata={self._data}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd="/",
            check=False,
        )
        log = self._folder / "server.log"
        said = (done.stdout or b"").decode() + (log.read_text() if log.exists() else "")
        assert done.returncode == 0, f"{program} failed: {said}"


class CommitBreaker:
    """A way to a server that breaks once armed: as a COMMIT is answered, so nobody hears of it."""

    def __init__(self, url: str) -> None:
        server = make_url(url)
        self._server = f"{server.query['host']}/.s.PGSQL.5432"
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-relay-", dir="/tmp"))
        self.url = server.update_query_dict({"host": str(self._folder)}).render_as_string()
        self.armed = threading.Event()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"{self._folder}/.s.PGSQL.5432")
        self._door.listen()
        threading.Thread(target=self._welcome, daemon=True).start()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        shutil.rmtree(self._folder)

    def _welcome(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            ends = {client: server, server: client}
            with suppress(OSError):
                while True:
                    for source in select.select(list(ends), [], [])[0]:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        ends[source].sendall(data)
                        if source is client and b"COMMIT\0" in data and self.armed.is_set():
                            self.armed.clear()
                            server.recv(1 << 16)  # the answer: it is stored
                            return


class FreezingProxy:
    """A way to a server by TCP that can freeze: then it takes connections and all that is sent, and
    passes nothing on, in both directions.
    """

    def __init__(self, url: str) -> None:
        server = make_url(url)
        self._server = f"{server.query['host']}/.s.PGSQL.5432"
        self._door = socket.create_server(("127.0.0.1", 0))
        host, port = self._door.getsockname()
        # The host's own word for it would be a socket's folder.
        plain = server.difference_update_query(["host"])
        self.url = plain.set(host=host, port=port).render_as_string()
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._welcome, daemon=True).start()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.thaw()
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _welcome(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            ends = {client: server, server: client}
            with suppress(OSError):
                while True:
                    for source in select.select(list(ends), [], [])[0]:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        self._flows.wait()
                        ends[source].sendall(data)


def _postgres_bin() -> Path:
    found = shutil.which("pg_ctl")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=str)
    if found is None and not folders:
        pytest.skip("no PostgreSQL server is installed (pg_ctl)")
    return folders[-1].parent if folders else Path(str(found)).parent
