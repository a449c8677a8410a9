"""The door for clients of Ordinaut: tasks, events, runs and agents by its routes, on schedules, pipelines and jobs
(docs/doors/ordinaut.md).

definitions.py says what of a schedule a task is; pipelines.py makes a workflow of its payload, with jmespath.py and
cel.py for what stands in `${…}`; documents.py shows it all as Ordinaut does.
"""

from accsd.gateway.context import GatewayContext
from accsd.gateway.doors import Door


def make_door(context: GatewayContext) -> Door:
    from accsd.gateway.ordinaut.app import app, serves  # needs the entrance, which needs the context

    del context  # each request has it
    return Door("ordinaut", serves=serves, app=app)
