"""The routes, a module for each noun. A route calls a reader or a verb, and answers with its document."""

from typing import Final

from fastapi import APIRouter

from accsd.gateway.routes import (
    access,
    artifacts,
    backfills,
    dead,
    events,
    fleet,
    jobs,
    nodes,
    operations,
    page,
    schedules,
    search,
    services,
    stream,
    system,
    tasks,
    tools,
    views,
    workflows,
)

ROUTERS: Final[tuple[APIRouter, ...]] = tuple(
    module.router
    for module in (
        access,
        artifacts,
        backfills,
        dead,
        events,
        fleet,
        jobs,
        nodes,
        operations,
        page,
        schedules,
        search,
        services,
        stream,
        system,
        tasks,
        tools,
        views,
        workflows,
    )
)
