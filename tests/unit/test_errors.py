"""The tree of errors: its four kinds, and what each error says."""

import inspect

import pytest

from accsd import errors
from accsd.errors import (
    AccsdError,
    AttemptFailed,
    Bug,
    InvalidValue,
    SchemaMismatch,
    Unavailable,
    UserError,
    VerbRefused,
)

EVERY_ERROR = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, AccsdError) and member is not AccsdError
]


@pytest.mark.parametrize("error", EVERY_ERROR)
def test_every_error_is_of_exactly_one_of_the_four_kinds(error: type[AccsdError]):
    kinds = [kind for kind in (UserError, AttemptFailed, Unavailable, Bug) if issubclass(error, kind)]

    assert len(kinds) == 1


@pytest.mark.parametrize("error", EVERY_ERROR)
def test_every_error_is_drawn_in_the_tree(error: type[AccsdError]):
    assert f"─ {error.__name__} " in f"{errors.__doc__} ".replace("\n", " \n")


def test_a_refused_verb_says_why_and_what_the_database_holds():
    refused = VerbRefused("finish_task", "stale_attempt", subject="task 7", held={"attempt_id": 3, "status": "running"})

    assert str(refused) == (
        "finish_task of task 7 refused: stale_attempt (the database holds attempt_id=3, status=running)"
    )
    assert refused.held["attempt_id"] == 3


@pytest.mark.parametrize(
    ("found", "sentence", "hint"),
    [
        (None, "no accsd schema", "accsd db install"),
        (1, "older", "accsd db upgrade"),
        (9, "newer", "upgrade accsd"),
    ],
)
def test_a_schema_of_another_version_is_named_with_the_way_out(found: int | None, sentence: str, hint: str):
    mismatch = SchemaMismatch(found=found, expected=4)

    assert sentence in str(mismatch)
    assert "4" in str(mismatch)
    assert hint in (mismatch.hint or "")
    assert mismatch.is_too_new == (found == 9)
    assert mismatch.is_too_old == (found == 1)


def test_a_failed_attempt_shows_its_code_first():
    failed = AttemptFailed("oom", "the container used more than 2 GiB", permanent=True)

    assert str(failed) == "oom: the container used more than 2 GiB"
    assert failed.permanent


def test_an_invalid_value_is_a_value_error_so_that_pydantic_can_place_it():
    assert issubclass(InvalidValue, ValueError)
