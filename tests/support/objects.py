"""What tasks have left in the object store, for a store that is a folder."""

import json
from pathlib import Path
from uuid import UUID

from tests.support.cluster import Connection


async def log_lines(conn: Connection, objects: Path, job: UUID, key: str) -> list[str]:
    """The messages of a task's log, over all its segments, in order."""
    rows = await conn.fetch(
        """SELECT a.key FROM task_artifacts a JOIN job_tasks t ON t.id = a.job_task_id
            WHERE t.job_id = $1 AND t.task_key = $2 AND a.kind = 'log' ORDER BY a.key""",
        job,
        key,
    )
    segments = [(objects / row["key"]).read_text().splitlines() for row in rows]
    return [json.loads(line)["message"] for segment in segments for line in segment]
