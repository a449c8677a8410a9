"""What Ordinaut does, or says that it does, and what the door makes of it: each with the test that shows it. Its own
unit tests assert what stands in KEPT and DEPARTED; BROKEN is what it promises, and does not do (2.2)."""

from typing import Final

_UNIT: Final = "tests/unit/test_ordinaut_expressions.py"
_TASKS: Final = "tests/doors/ordinaut/test_tasks.py"
_RUNS: Final = "tests/doors/ordinaut/test_runs.py"
_AGENTS: Final = "tests/doors/ordinaut/test_agents.py"
_ACCESS: Final = "tests/doors/ordinaut/test_access.py"

KEPT: Final = {
    "several `${}` in one text": (_UNIT, "test_texts_keep_types_and_what_is_literal"),
    "nested and indexed access, `length(list)`, `${now}`": (_UNIT, "test_a_value"),
    "templates inside of lists and objects; keys are no templates": (
        _UNIT,
        "test_texts_keep_types_and_what_is_literal",
    ),
    "truthiness in conditions; what is missing makes a comparison false": (
        _UNIT,
        "test_a_condition_is_true_or_false_by_the_rules_of_what_counts",
    ),
    "a syntax error names the expression": (_UNIT, "test_what_has_no_counterpart_is_refused_with_its_place"),
    "steps run in their order; a false condition leaves no output": (_RUNS, "test_a_false_condition_leaves_no_output"),
    "duplicate ids, unknown tools and unknown zones are refused": (
        _TASKS,
        "test_what_is_wrong_is_refused_in_words_with_its_place",
    ),
    "the last Friday of a month, working days, one time with an offset": (
        _TASKS,
        "test_the_expressions_of_the_seed_are_due_when_they_say",
    ),
    "lists with total and has_more; status codes": (_TASKS, "test_lists_are_pages_that_filters_narrow"),
    "an unknown agent, or a task that is not active, is answered 400": (
        _TASKS,
        "test_an_agent_that_is_not_there_is_answered_400_as_by_ordinaut",
    ),
    "errors of runs are hidden in lists unless they are asked for": (
        _RUNS,
        "test_a_failure_is_tried_again_and_then_told",
    ),
    "topics are matched exactly": (_RUNS, "test_an_event_starts_the_tasks_of_exactly_its_topic_with_its_payload"),
}

BROKEN: Final = {
    "a scheduler that starts": (_RUNS, "test_a_real_daemon_runs_what_the_door_has_made"),
    "`0 9 * * 1-5` is Monday to Friday": (_TASKS, "test_the_expressions_of_the_seed_are_due_when_they_say"),
    "create, edit, pause and cancel reach the scheduler": (
        _TASKS,
        "test_pause_and_resume_reach_the_scheduler_and_say_the_same_twice",
    ),
    "a snooze delays the next run": (_TASKS, "test_a_snooze_moves_the_next_run_by_its_seconds"),
    "the event's payload reaches the pipeline": (
        _RUNS,
        "test_an_event_starts_the_tasks_of_exactly_its_topic_with_its_payload",
    ),
    "retries wait in the database": (_RUNS, "test_a_failure_is_tried_again_and_then_told"),
    "priority, retries and backoff are used": (
        _TASKS,
        "test_the_example_of_its_own_description_is_made_as_it_stands",
    ),
    "concurrency_key": (_TASKS, "test_runs_of_one_concurrency_key_wait_for_each_other"),
    "dedupe_window_seconds": (_RUNS, "test_a_dedupe_window_lets_a_task_run_once_in_it"),
    "tools are really called": (_RUNS, "test_a_real_daemon_runs_what_the_door_has_made"),
    "`steps.weather.temperature > 25` and `${now+24h}` of its guide": (_UNIT, "test_a_value"),
    "tokens with scopes; a UUID lets nobody in; secrets are checked": (
        _ACCESS,
        "test_each_credential_reaches_what_its_scope_allows_and_nothing_else",
    ),
}

DEPARTED: Final = {
    "`${…}` as a whole value keeps its type; there it became text": (
        _UNIT,
        "test_texts_keep_types_and_what_is_literal",
    ),
    "a `${` that nothing closes is refused; `$${` is the literal": (
        _UNIT,
        "test_a_template_that_nothing_closes_is_refused",
    ),
    "what CEL has no words for is refused when the task is made": (
        _UNIT,
        "test_what_has_no_counterpart_is_refused_with_its_place",
    ),
    "a canceled task stays canceled": (_TASKS, "test_a_status_can_be_put_and_canceled_is_final"),
    "a time that lies behind ends its task, and says so": (
        _TASKS,
        "test_a_time_that_lies_behind_is_ended_at_once_and_says_so",
    ),
    "no redirect from `/tasks` to `/tasks/`": (
        _ACCESS,
        "test_nothing_is_redirected_and_a_slash_at_the_end_changes_nothing",
    ),
    "nothing to snooze is answered 409": (_TASKS, "test_a_snooze_moves_the_next_run_by_its_seconds"),
    "events are not deleted by hand": (_RUNS, "test_old_events_go_by_themselves"),
    "an agent that is deleted is locked out, and nothing of it is deleted": (
        _AGENTS,
        "test_an_agent_that_is_deleted_is_locked_out_with_its_tasks_and_nothing_is_lost",
    ),
    "scopes are those of accsd": (_AGENTS, "test_a_scope_that_accsd_does_not_have_is_refused"),
    "the built-in admin is nobody: leave its `created_by` and `source_agent_id` out": (
        _TASKS,
        "test_an_agent_that_is_not_there_is_answered_400_as_by_ordinaut",
    ),
    "`GET /agents` is a page like the other lists": (
        _AGENTS,
        "test_agents_are_listed_with_the_scopes_of_their_tokens",
    ),
    "60 requests a minute stand in its description only; here callers have `gateway.limits`": (
        _ACCESS,
        "test_whoever_asks_too_often_is_told_when_to_come_back",
    ),
    "`/health/ready`, `/health/live` and `/docs` are not there: `/health`, and the committed description": (
        _ACCESS,
        "test_what_is_about_the_server_itself_is_asked_of_accsd",
    ),
    "new scopes are a new secret": (_AGENTS, "test_a_new_secret_replaces_what_the_agent_had"),
}
