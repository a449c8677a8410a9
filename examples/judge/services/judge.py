"""A judge: compiles what was submitted, runs it on the cases of its problem, and says what came of it in one line.

The sandbox's own verdict (OK, TLE, MLE, OLE, RE, SE) stands in `verdict`, that of the judge in `status`. SE is about
this machine and not about the code: accsd tries it again.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from box import Box, Ran
from cases import Tests, is_same
from ground import ground_of_this_machine, why_unsafe
from keeper import Limits
from languages import LANGUAGES, PATH

MIB = 1024 * 1024
MOST_OUTPUT = 10 * MIB
PROCESSES = 20
COMPILING = Limits(
    cpu_ms=10_000, wall_ms=15_000, memory_kb=1024 * 1024, file_bytes=64 * MIB, processes=PROCESSES, tmp_bytes=128 * MIB
)
SHOWN = 4000  # characters of what a compiler says
# What a run-time says when it gets no memory: it has ended by itself then, below the limit that it has run into.
NO_MEMORY = (b"std::bad_alloc", b"MemoryError", b"Cannot allocate memory")
MOST_MS, MOST_KB = 10_000, 512 * 1024
STATUS = {
    "TLE": "Time Limit Exceeded",
    "MLE": "Memory Limit Exceeded",
    "OLE": "Output Limit Exceeded",
    "RE": "Runtime Error",
    "SE": "System Error",
}


class SandboxFailed(Exception):
    """Nothing was judged."""


def main() -> None:
    task = _task()
    _close_folder(task)
    try:
        judgement = judged(task)
    except (SandboxFailed, OSError, ValueError, KeyError) as error:
        judgement = _line("SE", error=str(error) or type(error).__name__)
        judgement["sandbox_error"] = judgement["error"]
    ids = {"schema_version": 1, "job_id": task["job_id"], "attempt_id": task["attempt_id"]}
    _say({**ids, **judgement})


def _task() -> dict:
    if path := os.environ.get("ACC_TASK_FILE"):
        return json.loads(Path(path).read_text())
    return json.loads(sys.stdin.readline())


def _close_folder(task: dict) -> None:
    """The test data lie in the task's folder: no other user of this machine or container is to come in."""
    os.chmod(task["workdir"], 0o700)


def judged(task: dict) -> dict:
    ground = ground_of_this_machine()
    if problem := why_unsafe(ground):
        raise SandboxFailed(problem)
    options, params = task["options"], task["params"]
    if (language := LANGUAGES.get(options["language"])) is None:
        raise SandboxFailed(f"this judge knows no {options['language']}")
    tests = Tests(Path(task["workdir"], "files", "tests.zip"))
    if not tests.names:
        raise SandboxFailed("the problem has no case")
    folder = Path(tempfile.mkdtemp(prefix="judge-"))
    try:
        box = Box(folder, ground)
        box.write(language.source, options["code"].encode())
        if (said := _compiled(box, language)) is not None:
            return _line("OK", "Compile Error", error=said)
        return _run_all(box, language, tests, _limits(options, params))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _limits(options: dict, params: dict) -> Limits:
    """Those of the submission, and never more than those of the problem."""
    cpu_ms = _least(options.get("time_limit"), params.get("time_limit_ms"), MOST_MS)
    memory_kb = _least(options.get("memory_limit"), params.get("memory_limit_kb"), MOST_KB)
    return Limits(
        cpu_ms=cpu_ms,
        wall_ms=2 * cpu_ms + 2000,
        memory_kb=memory_kb,
        file_bytes=MIB,
        processes=PROCESSES,
        tmp_bytes=16 * MIB,
    )


def _least(*given) -> int:
    return int(min(each for each in given if isinstance(each, (int, float)) and each > 0))


def _compiled(box: Box, language):
    """What the compiler complains of; None: it was content."""
    ran = box.run(language.compile, COMPILING, path=PATH, most_output=SHOWN * 4, writable=True)
    if ran.reason is None and ran.status == 0:
        return None
    said = (ran.stderr + ran.stdout).decode("utf-8", "replace").strip()[:SHOWN]
    return said or f"the compiler was ended: {_cause(ran)}"


def _cause(ran: Ran) -> str:
    return f"its {ran.reason} was too much" if ran.reason else f"it ended with status {ran.status}"


def _run_all(box: Box, language, tests: Tests, limits: Limits) -> dict:
    """The first case that is not accepted ends it; time and memory are the most of those that ran."""
    time_ms = mem_kb = 0
    for number, name in enumerate(tests.names, 1):
        ran = box.run(language.run, limits, path=PATH, given=tests.given(name), most_output=MOST_OUTPUT)
        time_ms, mem_kb = max(time_ms, _time(ran)), max(mem_kb, ran.mem_kb)
        used = {"time_ms": time_ms, "mem_kb": mem_kb, "cases": number}
        verdict = verdict_of(ran, limits)
        if verdict != "OK":
            return _line(verdict, case=name, ran=ran, **used)  # not what it said: it may have said the test data
        if not is_same(ran.stdout, tests.wanted(name)):
            return _line("OK", "Wrong Answer", case=name, ran=ran, **used)
        _progress(number, len(tests.names))
    return _line("OK", "Accepted", ran=ran, **used)


def _time(ran: Ran) -> int:
    """A program that slept until it was ended has used that time, too."""
    return ran.wall_ms if ran.reason == "wall" else ran.time_ms


def verdict_of(ran: Ran, limits: Limits) -> str:
    """The sandbox's: what ended the program, in the order of what is certain."""
    number = os.WTERMSIG(ran.status) if ran.status is not None and os.WIFSIGNALED(ran.status) else 0
    if ran.reason == "output" or number == signal.SIGXFSZ:
        return "OLE"
    if ran.reason == "memory" or ran.mem_kb > limits.memory_kb:
        return "MLE"
    if ran.reason in ("cpu", "wall") or number == signal.SIGXCPU or ran.time_ms > limits.cpu_ms:
        return "TLE"
    if ran.status == 0:
        return "OK"
    if ran.status is None:
        raise SandboxFailed(f"the program was ended: {ran.reason}")
    # a SIGKILL of the kernel's, where the group that this judge lives in has no memory left, or the program's own
    was_starved = number == signal.SIGKILL and 2 * ran.mem_kb > limits.memory_kb
    return "MLE" if was_starved or any(word in ran.stderr for word in NO_MEMORY) else "RE"


def _line(verdict: str, status: str = "", *, ran=None, time_ms: int = 0, mem_kb: int = 0, **more) -> dict:
    """The line of the protocol, with the members that older readers know beside it."""
    ended = ran.status if ran is not None and ran.status is not None else 0
    return {
        "verdict": verdict,
        "time_ms": time_ms,
        "mem_kb": mem_kb,
        "exit_signal": os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else 0,
        "sandbox_error": "",
        "status": status or STATUS[verdict],
        "time_used": time_ms,
        "memory_used": mem_kb,
        "exit_code": os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else 0,
        **more,
    }


def _progress(done: int, of: int) -> None:
    _say({"type": "progress", "progress": done / of, "message": f"case {done} of {of}"})


def _say(message: dict) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
