"""The judge of examples/judge by itself, in each way to keep a program in that this machine has."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.eventually import eventually_sync
from tests.support.judge_programs import (
    EXAMPLE,
    HOSTILE,
    PYTHON,
    SUM_CPP,
    SUM_PY,
    TESTS,
    VERDICTS,
    processes_of,
    programs_of,
    why_no_judge,
)

SOMEBODY = "1234"  # a user of no account
# Root that may not make namespaces, where there is no network: what a container gives.
CONTAINED = ["unshare", "-n", "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
WAYS = {
    "root": [],
    "user": ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"],
    "container": CONTAINED,
}


class Judge:
    """The program, started as accsd starts it, in one of these ways."""

    def __init__(self, way: Sequence[str], folder: Path) -> None:
        self._way = way
        self.task = str(uuid4())
        self.folder = folder
        shutil.copytree(EXAMPLE / "services", folder / "services", ignore=shutil.ignore_patterns("__pycache__"))
        self.tmp = folder / "tmp"
        for made in (self.tmp, folder):
            made.mkdir(exist_ok=True)
            made.chmod(0o777)

    def judge(
        self,
        code: str,
        language: str,
        tests: Mapping[str, str] = TESTS,
        *,
        ms: int = 1000,
        kb: int = 131_072,
        **more: Any,
    ) -> dict[str, Any]:
        """Its line, as the task protocol has it."""
        ran = self.start(code, language, tests, ms=ms, kb=kb, **more)
        out, err = ran.communicate(timeout=60)
        assert ran.returncode == 0, err
        *progress, line = [json.loads(each) for each in out.splitlines()]
        assert {each["type"] for each in progress} <= {"progress"}
        return line

    def start(
        self, code: str, language: str, tests: Mapping[str, str] = TESTS, *, ms: int = 1000, kb: int = 131_072,
        params: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        workdir = Path(tempfile.mkdtemp(dir=self.folder))
        data = workdir / "files" / "tests.zip"
        data.parent.mkdir()
        with zipfile.ZipFile(data, "w") as archive:
            for name, content in tests.items():
                archive.writestr(name, content)
        if "setpriv" in self._way[:1]:
            for path in (workdir, data.parent, data):
                os.chown(path, int(SOMEBODY), int(SOMEBODY))
        workdir.chmod(0o777)  # as accsd gives it to a container
        options = {"code": code.replace("TESTS", str(data)), "language": language, "time_limit": ms, "memory_limit": kb}
        task = {
            "job_id": "j",
            "attempt_id": 7,
            "workdir": str(workdir),
            "options": options,
            "params": dict(params or {}),
        }
        ours = {"PATH": os.environ["PATH"], "TMPDIR": str(self.tmp), "ACC_JOB_TASK_ID": self.task}
        judge = subprocess.Popen(
            [*self._way, PYTHON, str(self.folder / "services" / "judge.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**ours, **(environ or {})},
        )  # fmt: skip
        assert judge.stdin is not None
        judge.stdin.write(json.dumps(task) + "\n")
        judge.stdin.flush()
        return judge

    def leaves_nothing(self) -> None:
        """No process of a box, no folder, no mount."""
        assert processes_of(self.task) == []
        assert list(self.tmp.iterdir()) == []
        assert str(self.folder) not in Path("/proc/mounts").read_text()


@pytest.fixture(params=WAYS)
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    yield from _judge(request.param)


@pytest.fixture
def here() -> Iterator[Judge]:
    """In the best way of this machine."""
    yield from _judge("root")


def _judge(name: str) -> Iterator[Judge]:
    way = WAYS[name]
    if way and os.geteuid() != 0:
        pytest.skip("only root can take rights away from itself")
    if reason := why_no_judge(way):
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="accsd-judge-", dir="/tmp"))
    try:
        yield Judge(way, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_each_program_gets_its_verdict(judge: Judge):
    """The eight verdicts but for System Error, each by a real program (OJ-26, D10), and nothing is left of them."""
    for name, program in VERDICTS.items():
        line = judge.judge(program.code, program.language, ms=program.ms)
        assert (name, line["verdict"], line["status"]) == (name, program.verdict, program.status), line
    assert {each.status for each in VERDICTS.values()} == {
        "Accepted", "Wrong Answer", "Compile Error", "Time Limit Exceeded", "Memory Limit Exceeded",
        "Output Limit Exceeded", "Runtime Error",
    }  # fmt: skip
    judge.leaves_nothing()


def test_hostile_programs_are_kept_in(judge: Judge):
    """Fork bombs, floods, memory, reads and writes outside, the network: the right verdict, and the machine is well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = str(listener.getsockname()[1])
        for name, program in HOSTILE.items():
            line = judge.judge(program.code.replace("PORT", port), program.language, ms=program.ms)
            assert (name, line["verdict"], line["status"]) == (name, program.verdict, program.status), line
            assert processes_of(judge.task) == [], name
        with pytest.raises(TimeoutError):
            listener.accept()
    judge.leaves_nothing()


def test_the_line_is_that_of_the_protocol(here: Judge):
    """OJ-26, D10: the required members, none of them null, in one line, and those of older readers beside them."""
    line = here.judge(SUM_CPP, "cpp")
    required = {
        "schema_version",
        "job_id",
        "attempt_id",
        "verdict",
        "time_ms",
        "mem_kb",
        "exit_signal",
        "sandbox_error",
    }
    assert required | {"status", "time_used", "memory_used", "exit_code"} <= line.keys()
    assert None not in line.values()
    assert (line["schema_version"], line["job_id"], line["attempt_id"], line["cases"]) == (1, "j", 7, 3)
    crashed = here.judge(VERDICTS["crashes"].code, "cpp")
    assert (crashed["exit_signal"], crashed["exit_code"]) == (11, 0)
    assert here.judge("raise SystemExit(3)", "python")["exit_code"] == 3


def test_cases_run_in_the_order_of_their_names_as_text_until_one_is_not_accepted(here: Judge):
    """OJ-23: 1, 10, 2; the first that is wrong is named, and those behind it are not run."""
    only_first = "n = input()\nprint(3 if n == '1 2' else 0)"
    line = here.judge(only_first, "python")
    assert (line["status"], line["case"], line["cases"]) == ("Wrong Answer", "10", 2)
    tests = {"a.in": "1\n", "a.out": "1", "b.in": "100\n", "b.out": "100"}
    slow = "n = int(input())\nx = 'x' * (n << 18)\nfor _ in range(n * 50_000): pass\nprint(n)"
    most, first = (
        here.judge(slow, "python", tests),
        here.judge(slow, "python", {k: tests[k] for k in ("a.in", "a.out")}),
    )
    assert most["status"] == first["status"] == "Accepted"
    assert most["time_ms"] > first["time_ms"], "the most of the cases that ran"
    assert most["mem_kb"] > first["mem_kb"] + 20_000


@pytest.mark.parametrize(
    ("written", "wanted", "status"),
    [
        ("1\\n2\\n", "1\r\n2", "Accepted"),
        (" \\t1\\n2 \\n\\n", "1\n2", "Accepted"),
        ("1\\n2", "1 2", "Wrong Answer"),
        ("1 \\n2", "1\n2", "Wrong Answer"),
        ("1.0", "1", "Wrong Answer"),
        ("", " \n", "Accepted"),
    ],
)
def test_outputs_are_compared_without_the_white_space_around_them(here: Judge, written: str, wanted: str, status: str):
    """OJ-24."""
    code = f"import sys\nsys.stdout.write('{written}')"
    assert here.judge(code, "python", {"1.in": "", "1.out": wanted})["status"] == status


def test_the_limits_of_the_problem_bound_those_of_the_submission(here: Judge):
    """OJ-25: also where a submission came by another way than the door."""
    params = {"time_limit_ms": 300, "memory_limit_kb": 32_768}
    assert here.judge("while True: pass", "python", ms=5000, params=params)["time_ms"] < 1000
    eats = "x = []\nfor _ in range(100): x.append(bytearray(b'x') * (1 << 20))"
    assert here.judge(eats, "python", kb=400_000)["verdict"] == "OK"
    assert here.judge(eats, "python", kb=400_000, params=params)["verdict"] == "MLE"


def test_a_judgement_over_no_case_is_a_system_error(here: Judge):
    """OJ-21, and the eighth verdict: nothing was judged, and why is said."""
    for tests, said in (({}, "no case"), ({"1.in": "", "2.out": ""}, "no case")):
        line = here.judge(SUM_PY, "python", tests)
        assert (line["verdict"], line["status"]) == ("SE", "System Error")
        assert said in line["sandbox_error"]
    assert "knows no cobol" in here.judge("x", "cobol")["sandbox_error"]


def test_compilers_have_their_limits(here: Judge):
    """OJ-27: one that would never end is ended; what it says is told up to a length."""
    endless = "template <int N> struct A { A<N + 1> a; A<N + 2> b; }; A<0> a; int main() {}"
    line = here.judge(f'#pragma GCC diagnostic ignored "-w"\n{endless}', "cpp")
    assert line["status"] == "Compile Error"
    assert 0 < len(line["error"]) <= 4000


def test_where_the_network_can_not_be_denied_nothing_is_judged_unless_the_code_is_trusted(here: Judge):
    """The judge says what is missing; JUDGE_TRUSTS_CODE is for those who trust all code."""
    if os.geteuid() != 0:
        pytest.skip("only root can take rights away from itself")
    open_to_all = Judge(CONTAINED[2:], here.folder / "open")
    line = open_to_all.judge(SUM_PY, "python")
    assert line["verdict"] == "SE"
    assert "network can't be denied" in line["sandbox_error"]
    assert "JUDGE_TRUSTS_CODE=yes" in line["sandbox_error"]
    assert open_to_all.judge(SUM_PY, "python", environ={"JUDGE_TRUSTS_CODE": "yes"})["status"] == "Accepted"


def test_a_judge_that_is_killed_takes_its_programs_with_it(judge: Judge):
    """Also where they have left its session."""
    code = "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\ntime.sleep(60)"
    running = judge.start(code, "python", ms=10_000)
    eventually_sync(lambda: len(programs_of(judge.task)) == 8, within=20)
    os.killpg(running.pid, 9)
    running.wait(timeout=10)
    for pipe in (running.stdin, running.stdout, running.stderr):
        assert pipe is not None
        pipe.close()
    eventually_sync(lambda: processes_of(judge.task) == [], within=20)
