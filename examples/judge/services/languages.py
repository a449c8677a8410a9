"""The languages that this judge knows: how a program is compiled, and how it is run.

Every command runs in the box, where /box has the program and nothing else of this machine is to be written.
"""

from dataclasses import dataclass

PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Language:
    source: str  # the name of the file that the code is written to
    compile: tuple
    run: tuple


LANGUAGES = {
    "cpp": Language(
        "main.cpp",
        ("g++", "-std=c++17", "-O2", "-pipe", "-static", "-o", "/box/main", "/box/main.cpp"),
        ("/box/main",),
    ),
    # -I: neither the environment nor the folder that it runs in decides what is imported
    "python": Language(
        "main.py",
        ("python3", "-I", "-c", "compile(open('/box/main.py', 'rb').read(), 'main.py', 'exec')"),
        ("python3", "-I", "/box/main.py"),
    ),
}
