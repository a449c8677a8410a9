"""The client of zndraw-joblib as it is (0.1.7), for tests: it is synchronous, so each call runs in a thread."""

from typing import Any, ClassVar

import httpx
from zndraw_joblib.client import Category, Extension, JobManager
from zndraw_joblib.provider import Provider


class Rotate(Extension):
    category: ClassVar[Category] = Category.MODIFIER
    angle: float = 0.0

    def run(self, vis: Any, **kwargs: Any) -> Any:
        if self.angle < 0:
            raise ValueError(f"{self.angle} is no angle")
        return self.angle


class Files(Provider):
    category: ClassVar[str] = "files"
    path: str = "/"

    def read(self, handler: Any) -> Any:
        return handler[self.path]


class Api:
    """As the host's client has to be: statuses are raised as these kinds."""

    def __init__(self, url: str, token: str) -> None:
        self.http = httpx.Client(timeout=10)
        self.base_url = url
        self.token = token

    def get_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def raise_for_status(self, response: httpx.Response) -> None:
        match response.status_code:
            case 404:
                raise KeyError(response.text)
            case 401 | 403:
                raise PermissionError(response.text)
            case 409 | 422:
                raise ValueError(response.text)
            case _:
                response.raise_for_status()


def manager(url: str, token: str, **named: Any) -> JobManager:
    named.setdefault("max_startup_retries", 1)
    return JobManager(Api(url, token), **named)
