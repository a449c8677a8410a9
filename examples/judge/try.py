"""What a client of the judge does: logs in, makes a problem of a folder of cases, submits, waits for the verdict.

python3 try.py problems/sum sum.cpp
"""

import io
import json
import os
import sys
import urllib.request
import zipfile
from pathlib import Path

API = os.environ.get("JUDGE_API", "http://127.0.0.1:8460/api/v1")
LANGUAGES = {".cpp": "cpp", ".py": "python"}


def asked(path: str, body=None, token: str = "", **headers: str) -> dict:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", **headers}
    with urllib.request.urlopen(urllib.request.Request(API + path, data, given)) as answer:
        return json.load(answer)


def form(title: str, folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, file.name)
    return (
        (
            f'--cut\r\nContent-Disposition: form-data; name="title"\r\n\r\n{title}\r\n'
            '--cut\r\nContent-Disposition: form-data; name="file"; filename="tests.zip"\r\n\r\n'
        ).encode()
        + packed.getvalue()
        + b"\r\n--cut--\r\n"
    )


def main(folder: Path, code: Path) -> None:
    token = asked("/auth/login", {"username": "ada", "password": "correct horse"})["token"]
    multipart = {"Content-Type": "multipart/form-data; boundary=cut"}
    problem = asked("/problems", form(folder.name, folder), token, **multipart)
    wanted = {"problem_id": problem["id"], "language": LANGUAGES[code.suffix], "code": code.read_text()}
    job = asked("/submit", wanted, token)["job_id"]
    told = asked(f"/status/{job}", token=token, Prefer="wait=60")
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
