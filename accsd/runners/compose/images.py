"""Whether a service's image is here: asked before a start, and, once it was found missing, before a claim."""

import time
from datetime import timedelta
from typing import Final

from accsd.errors import AttemptFailed, DockerUnavailable
from accsd.model.outcome import ErrorCode
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.project import Project

_LOOK_AGAIN: Final = timedelta(seconds=30)
_TRY_AGAIN: Final = timedelta(minutes=5)  # the registry may be back


class ImageCheck:
    def __init__(self, project: Project, declared: Declared) -> None:
        self._project: Final = project
        self._declared: Final = declared
        self._missing: AttemptFailed | None = None
        self._missed_at: float = 0.0
        self._looked_at: float = 0.0

    async def provide(self) -> None:
        """Raises AttemptFailed(image_missing)."""
        try:
            await self._project.provide_image(self._declared)
        except AttemptFailed as error:
            if error.code == ErrorCode.IMAGE_MISSING:
                self._missing, self._missed_at, self._looked_at = error, time.monotonic(), time.monotonic()
            raise
        self._missing = None

    async def check(self) -> None:
        """Without it, a node would claim a task, give it back and claim it again."""
        if self._missing is None:
            return
        if _is_past(self._looked_at, _LOOK_AGAIN):
            self._looked_at = time.monotonic()
            if _is_past(self._missed_at, _TRY_AGAIN) or await self._project.docker.has_image(self._declared.image):
                self._missing = None
                return
        raise DockerUnavailable(self._missing.message, hint=self._missing.hint)


def _is_past(moment: float, limit: timedelta) -> bool:
    return time.monotonic() - moment > limit.total_seconds()
