"""Submits a task and waits for its end with one call.

ACC_TOKEN=accs_… python submit.py 45
"""

import sys

from rotation import ROOM, Rotate, api
from zndraw_joblib.client import JobManager


def main() -> None:
    us = api()
    angle = float(sys.argv[1]) if len(sys.argv) > 1 else 90.0
    task = JobManager(us).submit(Rotate(angle=angle), ROOM, job_room=ROOM)
    headers = us.get_headers() | {"Prefer": "wait=60"}
    answer = us.http.get(f"{us.base_url}/v1/joblib/tasks/{task}", headers=headers, timeout=70)
    us.raise_for_status(answer)
    shown = answer.json()
    print(f"{task}: {shown['status']}", shown["error"] or "")
    sys.exit(shown["status"] != "completed")


if __name__ == "__main__":
    main()
