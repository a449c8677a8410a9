"""A service that claims its tasks by itself: `ACC_DB_URL=… python wordcount.py`, as many processes as you like."""

import asyncio

from pydantic import BaseModel

from accsd.sdk import Service, Task

service = Service("wordcount")


class Params(BaseModel):
    text: str = ""
    pause: float = 0.0


@service.task
async def count(task: Task[Params]) -> dict[str, int]:
    await asyncio.sleep(task.params.pause)
    text = task.params.text or str(task.options.get("text", ""))
    return {"words": len(text.split())}


if __name__ == "__main__":
    service.run(concurrency=100)
