"""The door for clients of an online judge: the API of Deep-OJ (docs/doors/judge.md).

A problem is a workflow `judge.<id>` of one step, a submission is a job of it, and the judge is a service like any
other (examples/judge). app.py has the routes; submissions and problems are what they do; gate.py says who may; pace.py
who has to come back later; refusals.py how errors are told.
"""

from accsd.gateway.context import GatewayContext
from accsd.gateway.doors import Door


def make_door(context: GatewayContext) -> Door:
    from accsd.gateway.judge.app import JudgeApp, is_ours  # the settings of a closed door need none of it
    from accsd.gateway.judge.refusals import told

    # The door counts bodies by itself: who asks is known before a body is read, or found too large (OJ-12).
    return Door("judge", serves=is_ours, app=JudgeApp(context), largest=lambda _, __: 10**17, tell=told)
