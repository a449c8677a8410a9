"""The role `resolver` by itself; what its verbs do is tests/db/test_resolve.py."""

import pytest

from accsd.builder import resolver
from accsd.builder.resolver import Resolver
from accsd.db import Submission, apply_workflow, submit_job
from accsd.model import WorkflowDef
from tests.support.cluster import Connection
from tests.support.library import opened
from tests.support.resolving import to_resolve


async def test_what_was_decided_is_said_before_all_of_a_batch_is(
    db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    """Somebody's steps may take seconds each, and what comes before them need not wait for those after them."""
    monkeypatch.setattr(resolver, "_LONGEST_THOUGHT", 0.0)
    async with opened(db_url) as db:
        steps = [{"key": key, "service": "render", "with": {"n": "${1 + 1}"}} for key in "abc"]
        await submit_job(
            db, Submission(await apply_workflow(db, WorkflowDef.model_validate({"name": "w", "steps": steps})))
        )
        role = Resolver(db)
        for left in (2, 1, 0):
            told = await role.run_once()
            assert (told.did, told.more) == ("1 resolved", True)
            assert len(await to_resolve(conn)) == left
