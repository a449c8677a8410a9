"""Accounts of the judge: in the settings, with hashes of their passwords; a login gives a token for a while."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from accsd.gateway.judge.accounts import fits, hashed
from accsd.settings import Settings
from tests.support.cluster import Connection
from tests.support.judging import HASH, PASSWORD, Door, judging, zipped


async def login(door: Door, username: str = "ada", password: str = PASSWORD):
    return await door.ask("POST", "/api/v1/auth/login", by=None, json={"username": username, "password": password})


async def test_a_login_gives_a_token_that_submits_and_nothing_else(door: Door):
    """OJ-6: `user_id` is the place in the settings."""
    answer = await login(door)
    told = answer.json()
    assert (answer.status_code, told["username"], told["user_id"]) == (200, "ada", 1)
    problem = await door.problem()
    job = await door.submitted(problem, token=told["token"])
    assert (await door.status(job, token=told["token"]))["state"] == "pending"
    for method, path in (("POST", "/api/v1/problems"), ("POST", f"/api/v1/status/{job}/rejudge")):
        assert (await door.ask(method, path, token=told["token"])).json()["code"] == "FORBIDDEN"
    for path in ("/jobs", "/me", "/tokens"):
        assert (await door.gateway.get(path, token=told["token"])).status_code == 403, "not of accsd's own API"


async def test_an_admin_of_the_judge_makes_problems_and_is_none_of_accsd(door: Door):
    """OJ-3: admins are names in a list."""
    told = (await login(door, "root")).json()
    assert told["user_id"] == 2
    form: dict[str, Any] = {"data": {"title": "t"}, "files": {"file": ("t.zip", zipped({"1.in": "", "1.out": ""}))}}
    assert (await door.ask("POST", "/api/v1/problems", token=told["token"], **form)).status_code == 200
    assert (await door.gateway.get("/tokens", token=told["token"])).status_code == 403


async def test_a_login_ends(db_url: str, tmp_path: Path, conn: Connection):
    """OJ-6: an expiring token of the shared store, which a login with the same name again does not end."""
    async with judging(db_url, tmp_path / "objects", login="1h") as door:
        first = (await login(door)).json()["token"]
        assert (await login(door)).json()["token"] != first
        lives = await conn.fetchval("SELECT max(expires_at) - accs.clock() FROM accs.tokens WHERE actor IS NOT NULL")
        assert 3500 < lives.total_seconds() <= 3600
        await conn.execute("UPDATE accs.tokens SET expires_at = accs.clock() - interval '1 s'")
        assert (await door.ask("GET", "/status/x", token=first)).status_code == 401


async def test_wrong_names_and_passwords_are_one_answer(door: Door):
    """OJ-6: 401."""
    answers = [await login(door, "ada", "wrong one"), await login(door, "nobody", PASSWORD)]
    assert [each.status_code for each in answers] == [401, 401]
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["code"] == "UNAUTHORIZED"
    for body in (
        {},
        {"username": "ada"},
        {"username": "ad", "password": PASSWORD},
        {"username": "ada", "password": "short"},
    ):
        refused = await door.ask("POST", "/api/v1/auth/login", by=None, json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, "BAD_REQUEST"), body


async def test_accounts_are_made_in_the_settings(door: Door):
    """OJ-5: 409 for a name that is taken, 403 for every other, 400 for what can't be one."""

    async def asked(**body: str):
        answer = await door.ask("POST", "/api/v1/auth/register", by=None, json=body)
        return answer.status_code, answer.json()["code"]

    assert await asked(username="ada", password="long enough") == (409, "CONFLICT")
    assert await asked(username="eve", password="long enough", email="eve@example.org") == (403, "FORBIDDEN")
    for body in (
        {"username": "ev", "password": "long enough"},
        {"username": "x" * 33, "password": "long enough"},
        {"username": "eve"},
    ):
        assert await asked(**body) == (400, "BAD_REQUEST")


async def test_the_door_says_that_it_is_open(door: Door):
    """OJ-7: without a token."""
    answer = await door.ask("GET", "/api/v1/health", by=None)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_hash_fits_its_password_and_no_other():
    """OJ-6: salted, so that the same password has another hash each time."""
    assert fits(PASSWORD, HASH)
    assert not fits(PASSWORD + " ", HASH)
    assert hashed(PASSWORD) != HASH


def test_the_command_makes_a_hash_for_the_settings():
    ran = subprocess.run(
        [sys.executable, "-m", "accsd.gateway.judge.accounts"],
        input=f"{PASSWORD}\n", capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert fits(PASSWORD, ran.stdout.strip())
    judge = {"accounts": {"ada": ran.stdout.strip()}}
    assert Settings.model_validate({"gateway": {"judge": judge}}).gateway.judge is not None
    with pytest.raises(ValidationError):
        Settings.model_validate({"gateway": {"judge": {"accounts": {"ada": PASSWORD}}}})
