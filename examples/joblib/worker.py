"""A worker: serves the job Rotate until it is told to stop (Ctrl-C, SIGTERM).

ACC_TOKEN=accs_… python worker.py
"""

import socketio
from rotation import GATEWAY, ROOM, Rotate, api
from zndraw_joblib.client import ClaimedTask, JobManager
from zndraw_socketio import SyncClientWrapper


def execute(task: ClaimedTask) -> None:
    print(f"{task.task_id}: {task.extension.run(None)}", flush=True)


def main() -> None:
    us = api()
    client = socketio.Client()  # news of tasks come at once; without it the worker asks every two seconds
    manager = JobManager(us, SyncClientWrapper(client), execute=execute)
    client.connect(GATEWAY, auth={"token": us.get_headers()["Authorization"].removeprefix("Bearer ")})
    with manager:
        manager.register(Rotate, room=ROOM)
        print(f"worker {manager.worker_id} serves {ROOM}:modifiers:Rotate", flush=True)
        manager.wait()
    client.disconnect()


if __name__ == "__main__":
    main()
