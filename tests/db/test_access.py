"""Tokens, sessions and one-time codes: who gets in, for how long, and that nobody finds out how."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest

from accsd.db import Database
from accsd.db.access import (
    any_tokens,
    caller_of_session,
    caller_of_token,
    create_code,
    create_share,
    create_token,
    end_session,
    forget_access,
    open_session,
    revoke_token,
    sessions,
    tokens,
)
from accsd.db.answers import Verdict
from accsd.errors import InvalidValue, NotFound, VerbRefused
from accsd.log import get_logger
from accsd.model.access import CreatedToken, Scope, new_token
from tests.support.cluster import Connection
from tests.support.factory import clock, dump, pass_time, submit
from tests.support.library import opened
from tests.support.roles import As, refused
from tests.support.roles import connect_as as connect_as
from tests.support.roles import roles as roles

pytestmark = pytest.mark.every_postgresql

HOUR, DAY = 3600, 86400


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


async def made(db: Database, *scopes: Scope, lives: timedelta | None = timedelta(days=90)) -> CreatedToken:
    return await create_token(db, "ci", scopes or (Scope.SUBMIT,), lives=lives, by="ada@studio")


async def disable(conn: Connection, actor: str) -> None:
    await conn.execute("SELECT accs.put_actor($1, p_disabled => true)", actor)


# Tokens


async def test_a_token_lets_its_actor_in_with_its_scopes_and_what_they_imply(db: Database):
    token = await create_token(
        db, "laptop", [Scope.OPERATE], actor="ada", kind="person", limits={"workflows": ["media-*"]}
    )
    caller = await caller_of_token(db, token.token)
    assert caller is not None
    assert (caller.actor, caller.kind, caller.token_id, caller.session_id) == ("ada", "person", token.id, None)
    assert caller.scopes == {Scope.READ, Scope.SUBMIT, Scope.OPERATE}
    assert caller.limits == {"workflows": ["media-*"]}


async def test_what_is_not_the_token_lets_nobody_in(db: Database):
    token, other = await made(db), new_token()
    for wrong in (
        other.text,
        f"accs_{token.id}_{other.text[-43:]}",
        f"accs_{other.id}_{token.token[-43:]}",
        token.id,
        token.token[:-1],
        "",
    ):
        assert await caller_of_token(db, wrong) is None


async def test_without_an_actor_one_with_the_tokens_name_is_made_and_a_second_token_is_of_the_same(
    db: Database, conn: Connection
):
    first, second = await made(db), await made(db, Scope.READ)
    assert (first.actor, second.actor) == ("ci", "ci")
    assert await conn.fetch("SELECT name, kind FROM accs.actors") == [("ci", "service")]
    with pytest.raises(VerbRefused, match="actor_of_another_kind"):
        await create_token(db, "x", [Scope.READ], actor="ci", kind="person")
    await disable(conn, "ci")
    with pytest.raises(VerbRefused, match="actor_disabled"):
        await made(db)


async def test_a_token_lives_90_days_unless_somebody_says_otherwise(db: Database, conn: Connection):
    usual, longer = await made(db), await made(db, lives=None)
    assert usual.expires_at is not None
    assert abs(usual.expires_at - await clock(conn) - timedelta(days=90)) < timedelta(minutes=1)
    assert longer.expires_at is None
    await pass_time(conn, 90 * DAY - 60)
    assert await caller_of_token(db, usual.token) is not None
    await pass_time(conn, 120)
    assert await caller_of_token(db, usual.token) is None
    assert await caller_of_token(db, longer.token) is not None
    with pytest.raises(InvalidValue):
        await made(db, lives=timedelta(0))


async def test_a_revoked_token_and_one_of_a_disabled_actor_are_dead_at_once(db: Database, conn: Connection):
    lost, kept = await made(db), await create_token(db, "laptop", [Scope.READ])
    assert await revoke_token(db, lost.id, by="ada") is Verdict.ACCEPTED
    assert await revoke_token(db, lost.id) is Verdict.REPEATED
    assert await caller_of_token(db, lost.token) is None
    assert await caller_of_token(db, kept.token) is not None
    await disable(conn, "laptop")
    assert await caller_of_token(db, kept.token) is None
    assert {token.id: token.state for token in await tokens(db)} == {lost.id: "revoked", kept.id: "disabled"}
    with pytest.raises(NotFound):
        await revoke_token(db, "nothing1")


async def test_a_gateway_may_be_open_to_others_while_a_token_is_live_that_is_no_share(db: Database, conn: Connection):
    assert not await any_tokens(db)
    await create_share(db, await submit(conn), lives=timedelta(days=1), by="ada")
    assert not await any_tokens(db)
    token = await made(db)
    assert await any_tokens(db)
    await revoke_token(db, token.id)
    assert not await any_tokens(db)


async def test_a_check_only_reads_and_the_use_is_noted_once_a_minute(db: Database, db_url: str, conn: Connection):
    token = await made(db)
    await conn.execute("SELECT accs.touch_token('nothing1')")
    async with opened(db_url, pool_size=1) as reads:
        async with reads.acquire() as connection:
            await connection.execute("SET default_transaction_read_only = on")
        assert await caller_of_token(reads, token.token, verbs=db) is not None
        row = "SELECT xmin, last_used_at = date_trunc('minute', accs.clock()) AS to_the_minute FROM accs.tokens"
        before = await conn.fetchrow(row)
        assert before is not None
        await pass_time(conn, -(await conn.fetchval("SELECT date_part('second', accs.clock())")))
        assert await caller_of_token(reads, token.token) is not None, "nothing is due to be written"
        assert await conn.fetchval("SELECT xmin FROM accs.tokens") == before["xmin"]
        assert before["to_the_minute"]
        await pass_time(conn, 60)
        assert await caller_of_token(reads, token.token, verbs=db) is not None
        assert await conn.fetchval("SELECT xmin FROM accs.tokens") != before["xmin"]


async def test_a_share_shows_one_job_for_30_days_at_most(db: Database, conn: Connection):
    job = await submit(conn)
    share = await create_share(db, job, lives=timedelta(days=30), by="ada")
    caller = await caller_of_token(db, share.token)
    assert caller is not None
    assert (caller.subject, caller.scopes, caller.actor) == (f"job:{job}", {Scope.READ}, "ada")
    with pytest.raises(InvalidValue):
        await create_share(db, job, lives=timedelta(days=31), by="ada")
    with pytest.raises(NotFound):
        await create_share(db, uuid4(), lives=timedelta(days=1), by="ada")
    await disable(conn, "ada")
    assert await caller_of_token(db, share.token) is None


# Sessions and codes


async def test_a_share_lasts_no_longer_than_the_token_that_it_was_made_with(db: Database, conn: Connection):
    job, week = await submit(conn), timedelta(days=7)
    maker = await create_token(db, "ada", [Scope.OPERATE], lives=timedelta(days=2))
    share = await create_share(db, job, lives=week, by="ada", of_token=maker.id)
    assert share.expires_at == maker.expires_at
    assert await caller_of_token(db, share.token) is not None
    detail = await conn.fetchval("SELECT detail FROM accs.audit WHERE action = 'create_share'")
    assert detail["share"] == share.id, "so that its revocation can be found"
    cookie = await open_session(db, token=share.token)
    assert cookie is not None
    await revoke_token(db, maker.id)
    assert await caller_of_token(db, share.token) is None
    assert await caller_of_session(db, cookie.cookie) is None
    assert [each.state for each in await tokens(db)] == ["revoked", "revoked"]
    await forget_access(db)
    assert len(await tokens(db)) == 2, "lists tell of shares that have ended as of other tokens"


async def test_a_session_has_what_its_token_has_and_dies_with_it(db: Database):
    token = await made(db, Scope.SUBMIT)
    opening = await open_session(db, token=token.token, user_agent="Firefox " * 100)
    assert opening is not None
    caller = await caller_of_session(db, opening.cookie)
    assert caller == opening.caller
    assert caller is not None
    assert (caller.actor, caller.token_id, caller.scopes) == ("ci", token.id, {Scope.READ, Scope.SUBMIT})
    assert [len(session.user_agent or "") for session in await sessions(db)] == [200]
    await revoke_token(db, token.id)
    assert await caller_of_session(db, opening.cookie) is None
    assert await open_session(db, token=token.token) is None


async def test_a_session_lives_12_hours_from_its_last_request_and_7_days_at_most(db: Database, conn: Connection):
    opening = await open_session(db, token=(await made(db)).token)
    assert opening is not None
    for _ in range(15):  # 7 days less 3 hours
        await pass_time(conn, 11 * HOUR)
        assert await caller_of_session(db, opening.cookie) is not None
    await pass_time(conn, 4 * HOUR)
    assert await caller_of_session(db, opening.cookie) is None

    idle = await open_session(db, token=(await made(db)).token)
    assert idle is not None
    await pass_time(conn, 12 * HOUR + 1)
    assert await caller_of_session(db, idle.cookie) is None


async def test_a_session_is_written_once_a_minute_and_ends_when_its_actor_is_disabled(db: Database, conn: Connection):
    opening = await open_session(db, code=await create_code(db, actor="ada@studio", scopes=[Scope.READ]))
    assert opening is not None
    xmin = "SELECT xmin FROM accs.sessions"
    before = await conn.fetchval(xmin)
    await caller_of_session(db, opening.cookie)
    assert await conn.fetchval(xmin) == before
    await pass_time(conn, 61)
    await caller_of_session(db, opening.cookie)
    assert await conn.fetchval(xmin) != before
    await disable(conn, "ada@studio")
    assert await caller_of_session(db, opening.cookie) is None


async def test_a_code_opens_one_session_within_a_minute(db: Database, conn: Connection):
    code = await create_code(db, actor="ada@studio", scopes=[Scope.ADMIN])
    both = await asyncio.gather(open_session(db, code=code), open_session(db, code=code))
    [opening] = [each for each in both if each is not None]
    assert (opening.caller.actor, opening.caller.kind, opening.caller.token_id) == ("ada@studio", "person", None)
    assert opening.caller.may(Scope.ADMIN)
    assert await caller_of_session(db, opening.cookie) == opening.caller

    late = await create_code(db, actor="ada@studio", scopes=[Scope.ADMIN])
    await pass_time(conn, 61)
    assert await open_session(db, code=late) is None
    assert await open_session(db, code="nonsense") is None
    assert await open_session(db) is None


async def test_a_session_can_be_ended(db: Database, conn: Connection):
    opening = await open_session(db, code=await create_code(db, actor="ada", scopes=[Scope.READ]))
    assert opening is not None
    session_id = opening.caller.session_id
    assert session_id is not None
    before = await conn.fetchval("SELECT count(*) FROM accs.audit")
    assert await end_session(db, session_id) is Verdict.ACCEPTED
    assert await end_session(db, session_id) is Verdict.REPEATED
    assert await caller_of_session(db, opening.cookie) is None
    assert await conn.fetchval("SELECT count(*) FROM accs.audit") == before, "to log out is no deed"


# Upkeep, and what nobody may see


async def test_what_lets_nobody_in_any_more_is_removed(db: Database, conn: Connection):
    token = await made(db)
    await open_session(db, token=token.token)
    await create_code(db, actor="ada", scopes=[Scope.READ])
    assert await forget_access(db) == 0
    await pass_time(conn, 13 * HOUR)
    assert await forget_access(db) == 2
    await pass_time(conn, 120 * DAY)
    assert await forget_access(db) == 0, "a token that has expired is still listed"
    assert [each.state for each in await tokens(db)] == ["expired"]
    await pass_time(conn, 400 * DAY)
    assert await forget_access(db) == 1


@pytest.mark.usefixtures("roles")
async def test_no_role_reads_what_lets_somebody_in(connect_as: As, conn: Connection):
    """Whatever relation of ours has a digest of a credential, by its columns: a view that is added later, too."""
    closed = await conn.fetch(
        """SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE c.relnamespace = 'accs'::regnamespace AND c.relkind IN ('r', 'v') AND a.attname = 'sha256'
              AND a.atttypid = 'bytea'::regtype"""
    )
    assert {row["name"] for row in closed} == {
        "accs.tokens", "accs.live_tokens", "accs.sessions", "accs.live_sessions", "accs.login_codes",
    }  # fmt: skip
    for role in ("accs_scheduler", "accs_archive", "accs_agent", "accs_api", "accs_gateway", "accs_reader"):
        login = await connect_as(role)
        for row in closed:
            await refused(login, f"SELECT FROM {row['name']}")
            if ".live_" not in row["name"]:  # nobody can delete from a view of two tables
                await refused(login, f"DELETE FROM {row['name']}")


@pytest.mark.usefixtures("roles")
async def test_a_gateway_checks_and_makes_tokens_and_an_agent_or_a_reader_does_neither(connect_as: As):
    api = await connect_as("accs_api")
    token = await made(api, Scope.ADMIN)
    assert await caller_of_token(api, token.token) is not None
    opening = await open_session(api, token=token.token)
    assert opening is not None
    assert await caller_of_session(api, opening.cookie) is not None
    assert [each.id for each in await tokens(api)] == [token.id]
    await revoke_token(api, token.id)
    for role in ("accs_agent", "accs_reader", "accs_archive"):
        login = await connect_as(role)
        for call in (
            "list_tokens()",
            "any_tokens()",
            "check_token('a', '')",
            "revoke_token('a')",
            "create_code('', 'a', '{}')",
        ):
            await refused(login, f"SELECT * FROM accs.{call}")


async def test_the_text_of_a_credential_is_nowhere_in_the_database_nor_in_the_log(
    db: Database, conn: Connection, capsys: pytest.CaptureFixture[str]
):
    """The canary: all tables are searched for what was given out."""
    token = await made(db)
    code = await create_code(db, actor="ada", scopes=[Scope.READ])
    by_token, by_code = await open_session(db, token=token.token), await open_session(db, code=code)
    assert by_token is not None
    assert by_code is not None
    await caller_of_token(db, token.token)
    await caller_of_session(db, by_token.cookie)
    get_logger(role="gateway").info("opened", token=token, session=by_token)
    await revoke_token(db, token.id)
    everything = "\n".join(row for rows in (await dump(conn)).values() for row in rows)
    said = capsys.readouterr()
    assert token.id in everything, "the search finds what is there"
    for secret in (token.token, by_token.cookie, by_code.cookie, code):
        assert secret[-43:] not in everything
        assert secret[-43:] not in said.out + said.err
