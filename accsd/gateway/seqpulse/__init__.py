"""The door for SeqPulse's clients: a deployment begins and ends, its application is sampled before and after, and the
samples are judged (docs/doors/seqpulse.md).

app.py lets in and says what went wrong, routes.py answers; collector.py asks an application; services.py has the two
services that do the scheduled work in this process. Rules are numbered as in the tests (SP-11).
"""

from accsd.errors import Bug
from accsd.gateway.context import GatewayContext
from accsd.gateway.doors import Door
from accsd.gateway.seqpulse.app import SeqpulseApp, told
from accsd.gateway.seqpulse.desk import Desk
from accsd.gateway.seqpulse.services import roles_of


def make_door(context: GatewayContext) -> Door:
    settings = context.settings.gateway.seqpulse
    if settings is None:
        raise Bug("a door without its settings stays shut")
    desk = Desk(context, settings)
    return Door("seqpulse", serves=_serves, app=SeqpulseApp(desk), tell=told, roles=roles_of(desk))


def _serves(path: str) -> bool:
    return path in ("/deployments", "/sdh") or path.startswith("/deployments/")
