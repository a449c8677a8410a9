"""What the author of a service imports (docs/writing-a-service.md).

wire        the protocol's side of it: standard library only, one file
service     typed parameters, their schema, async functions
serving     `python service.py --serve :8080`: a service that stays up, for mode http; standard library only, too
vendor      copies of wire and serving beside a service, for images without accsd
trial       `python service.py --try …`: a run on the author's own machine, without accsd
"""

from accsd.sdk.service import Service
from accsd.sdk.wire import Cancelled, Permanent, Task, Temporary

__all__ = ["Cancelled", "Permanent", "Service", "Task", "Temporary"]
