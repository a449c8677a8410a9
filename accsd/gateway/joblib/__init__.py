"""The door for clients of zndraw-joblib: typed jobs and workers over REST (docs/doors/joblib.md).

A joblib job is a workflow of one step, a worker a node, a task a job. app.py has the routes, claims.py whoever waits
for work, news.py and sockets.py what Socket.IO tells, board.py the results of providers, sweeper.py what goes away.
Rules are numbered there, JB-1 to JB-46.
"""

from accsd.gateway.context import GatewayContext
from accsd.gateway.doors import Door
from accsd.gateway.joblib.app import JoblibApp, largest_body, serves
from accsd.gateway.joblib.desk import Desk
from accsd.gateway.joblib.problems import response_of
from accsd.gateway.joblib.sweeper import Sweeper
from accsd.roles import Role


def make_door(context: GatewayContext) -> Door:
    desk = Desk(context)
    return Door(
        "joblib",
        serves=serves,
        app=JoblibApp(desk),
        largest=lambda method, path: largest_body(desk.settings, method, path),
        speaks_websocket=True,
        tell=response_of,
        roles=(
            Role("joblib-news", "tells sockets and workers of the joblib door what happens", lambda _: desk.news),
            Role("joblib-claims", "wakes the workers of the joblib door that wait for a task", lambda _: desk.claims),
            Role(
                "joblib-sweeper",
                "removes workers of the joblib door that are not heard any more",
                lambda _: Sweeper(desk),
            ),
        ),
    )
