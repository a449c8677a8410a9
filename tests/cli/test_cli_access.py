"""`accsd tokens`, `accsd open`, `accsd audit`: what lets people in, and what they did."""

import json
from pathlib import Path

import pytest

from accsd.cli.tokens import address
from accsd.db.access import caller_of_token, open_session
from accsd.db.pool import Database
from accsd.model.access import Scope
from accsd.settings import Settings
from tests.support.cli import Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import node, submit


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


async def test_a_token_is_printed_once_and_lets_its_actor_in_until_it_is_revoked(cli: Cli, db: Database):
    said = (await cli("tokens", "create", "ci", "--scope", "submit", "--limit", "workflows=media-*")).ends(0)
    token = said.out.strip()
    assert token not in said.err, "shown once"
    assert "curl -H" in said.err
    caller = await caller_of_token(db, token)
    assert caller is not None
    assert (caller.actor, caller.kind, caller.limits) == ("ci", "service", {"workflows": ["media-*"]})
    listed = (await cli("tokens", "list")).ends(0, "workflows=media-*", "submit", "live")
    assert token not in listed.out
    [row] = (await cli("tokens", "list", "-o", "json")).json
    assert row["scopes"] == ["submit"]
    (await cli("tokens", "revoke", row["id"], "--reason", "the laptop was lost")).ends(0, "is revoked")
    (await cli("tokens", "revoke", row["id"])).ends(0, "was revoked before")
    (await cli("tokens", "revoke", "nothing1")).ends(3, "there is no token")
    assert await caller_of_token(db, token) is None
    (await cli("tokens", "list")).ends(0, "there is no token")
    assert [row["state"] for row in (await cli("tokens", "list", "--all", "-o", "json")).json] == ["revoked"]


async def test_a_program_gets_the_token_in_an_object(cli: Cli, db: Database):
    made = (
        await cli("tokens", "create", "laptop", "--scope", "read", "--scope", "agent", "--actor", "ada",
                  "--kind", "person", "--expires", "never", "-o", "json")
    ).json  # fmt: skip
    assert (made["actor"], made["scopes"], made["expires_at"]) == ("ada", ["read", "agent"], None)
    caller = await caller_of_token(db, made["token"])
    assert caller is not None
    assert (caller.actor, caller.kind, caller.scopes) == ("ada", "person", {Scope.READ, Scope.AGENT})
    for wrong in (["--limit", "jobs=1"], ["--expires", "soon"], ["--expires", "0"], ["--scope", "root"]):
        (await cli("tokens", "create", "x", "--scope", "read", *wrong)).ends(2)
    (await cli("tokens", "create", "x")).ends(2)
    (await cli("tokens", "create", "x", "--scope", "read", "--actor", "ada", "--kind", "service")).ends(1, "kind")


async def test_a_link_logs_in_once_as_the_one_who_typed_the_command(db_url: str, db: Database, tmp_path: Path):
    config = tmp_path / "accsd.toml"
    config.write_text('[gateway]\nlisten = "0.0.0.0:8700"\nbase_path = "/accsd"\n')
    cli = Cli(db_url)
    said = (await cli("--config", str(config), "open", "--scope", "read")).ends(0, "works once")
    link, _, code = said.out.strip().partition("#code=")
    assert link == "http://127.0.0.1:8700/accsd/"
    opened = await open_session(db, code=code)
    assert opened is not None
    assert (opened.caller.kind, opened.caller.scopes) == ("person", {Scope.READ})
    assert "@" in opened.caller.actor
    assert await open_session(db, code=code) is None
    document = (await cli("--config", str(config), "open", "-o", "json")).json
    assert document["scopes"] == ["admin"]
    (await cli("open")).ends(2, "gateway.listen")


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:80", "http://127.0.0.1:80"),
        ("0.0.0.0:80", "http://127.0.0.1:80"),
        ("[::]:8700", "http://[::1]:8700"),
        ("studio.example:443", "http://studio.example:443"),
    ],
)
def test_a_gateway_that_listens_everywhere_is_found_here(listen: str, found: str):
    assert address(Settings.model_validate({"gateway": {"listen": listen}})) == found


async def test_the_audit_says_who_did_what_by_command(cli: Cli, conn: Connection):
    await node(conn)
    job = await submit(conn)
    (await cli("nodes", "drain", "n1", "--reason", "new disk")).ends(0)
    (await cli("nodes", "resume", "n1", "--reason", "it is in")).ends(0)
    (await cli("cancel", str(job), "--reason", "wrong input")).ends(0)
    (await cli("dead", "dismiss", "17", "--reason", "known")).ends(3)
    found = (await cli("audit", "-o", "json")).json
    told = [(row["action"], row["via"], row["reason"], row["answer"]) for row in found if row["via"] == "cli"]
    assert told == [
        ("dismiss", "cli", "known", "refused"),
        ("cancel_jobs", "cli", "wrong input", "accepted"),
        ("resume", "cli", "it is in", "accepted"),
        ("pause", "cli", "new disk", "accepted"),
    ]
    assert all("@" in row["actor"] for row in found if row["via"] == "cli")
    (await cli("audit", "--target", "n1", "--since", "1h")).ends(0, "node n1", "new disk")
    assert [row["action"] for row in (await cli("audit", "--target", str(job), "-o", "json")).json] == ["cancel_jobs"]
    page = (await cli("audit", "--limit", "2", "--before", str(found[0]["id"]), "-o", "json")).json
    assert page == json.loads(json.dumps(found[1:3]))
    (await cli("audit", "--actor", "nobody")).ends(0, "nobody has done anything")
