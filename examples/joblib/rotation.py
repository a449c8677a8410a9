"""What worker.py and submit.py share: a job's type, and who they are at the gateway."""

import os
from typing import Any, ClassVar

import httpx
from zndraw_joblib.client import Category, Extension

GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:8460")
ROOM = "lab"


class Rotate(Extension):
    """Turns a molecule by an angle. The fields are the job's schema."""

    category: ClassVar[Category] = Category.MODIFIER
    angle: float = 90.0
    molecule: str = "benzene"

    def run(self, vis: Any, **kwargs: Any) -> str:
        return f"{self.molecule} is turned by {self.angle:g} degrees"


class Api:
    """What JobManager asks of the program that it is a part of. In ZnDraw that is its own client."""

    base_url = GATEWAY

    def __init__(self, token: str) -> None:
        self.http = httpx.Client(timeout=10)
        self._token = token

    def get_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    def raise_for_status(self, response: httpx.Response) -> None:
        kinds = {404: KeyError, 401: PermissionError, 403: PermissionError, 409: ValueError, 422: ValueError}
        if response.status_code in kinds:
            raise kinds[response.status_code](response.text)
        response.raise_for_status()


def api() -> Api:
    return Api(os.environ["ACC_TOKEN"])
