"""A shop that is deployed: an application with SeqPulse's middleware, and customers who visit it.

python3 shop.py        # POST /release/NAME is its deployment; a release named …-broken fails every other visit
"""

import os
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from itertools import count

import uvicorn
from fastapi import FastAPI, HTTPException
from seqpulse import SeqPulse

PORT = int(os.environ.get("SHOP_PORT", "8000"))
app = FastAPI()
pulse = SeqPulse(endpoint="/seqpulse-metrics", hmac_enabled=True, hmac_secret="a-secret-for-the-shop")
app.middleware("http")(pulse.middleware())
state = {"release": "1"}
visits = count()


@app.get("/")
async def visit() -> dict[str, str]:
    if state["release"].endswith("-broken") and next(visits) % 2:
        raise HTTPException(500, "the shelf has fallen down")
    return state


@app.post("/release/{name}")
async def release(name: str) -> dict[str, str]:
    before, state["release"] = state["release"], name
    print(f"the shop is at release {name}", flush=True)
    return {"release": name, "before": before}


def customers() -> None:
    while True:
        time.sleep(0.2)
        with suppress(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5).read()


if __name__ == "__main__":
    threading.Thread(target=customers, daemon=True).start()
    print("the shop is open", flush=True)
    uvicorn.run(app, port=PORT, log_level="warning")
