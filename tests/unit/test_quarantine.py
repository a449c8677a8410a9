"""Who is ill, the node or the step: what follows from how attempts ended."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from accsd.planning.quarantine import (
    Conclusion,
    Fault,
    Judgement,
    Place,
    Quarantine,
    QuarantineRules,
    Step,
    judge,
    pause,
)

RULES = QuarantineRules()
STEP = Step(UUID(int=1), "render")


def ended(node: str, task: int, fault: Fault | None = None, *, step: Step = STEP, **more: Any) -> Conclusion:
    return Conclusion(Place(node, "gpu"), step, UUID(int=task), fault, **more)


def failed(node: str, *tasks: int, fault: Fault = Fault.UNKNOWN, **more: Any) -> list[Conclusion]:
    return [ended(node, task, fault, code="exit_nonzero", **more) for task in tasks]


def passed(node: str, *tasks: int, **more: Any) -> list[Conclusion]:
    return [ended(node, task, **more) for task in tasks]


def places(judgement: Judgement) -> list[str]:
    return [shut.place.node for shut in judgement.shut]


def test_a_node_where_tasks_fail_that_pass_elsewhere_is_shut():
    judgement = judge([*failed("bad", 1, 2, 3), *passed("good", 4, 5, 6, 1)], RULES)
    assert places(judgement) == ["bad"]
    assert 'step "render"' in judgement.shut[0].reason
    assert "exit_nonzero" in judgement.shut[0].reason
    assert judgement.failing == ()


def test_one_task_that_fails_again_and_again_accuses_nobody():
    assert judge([*failed("n1", 1, 1, 1, 1), *passed("n2", 2, 3, 4, 5)], RULES) == Judgement()


def test_tasks_that_fail_on_other_nodes_too_do_not_accuse_this_one():
    enough = passed("n2", *range(4, 24))
    assert places(judge([*failed("n1", 1, 2, 3), *failed("n2", 1, 2, 3), *enough], RULES)) == []
    assert places(judge([*failed("n1", 1, 2, 3), *failed("n2", 81, 82, 83), *enough], RULES)) == ["n1"]


def test_what_others_fail_at_as_well_needs_a_longer_row():
    flaky = [ended("n2", 100 + n, Fault.UNKNOWN if n % 2 else None) for n in range(10)]
    assert places(judge([*failed("n1", 1, 2, 3), *flaky], RULES)) == []
    assert places(judge([*failed("n1", *range(1, 10)), *flaky], RULES)) == ["n1"]


def test_a_pass_before_the_row_began_proves_nothing():
    assert places(judge([*passed("n2", 4, 5, 6, 7), *failed("n1", 1, 2, 3)], RULES)) == []


def test_what_is_a_machines_fault_needs_nobody_to_compare_with():
    assert places(judge(failed("n1", 1, 1, 2, fault=Fault.MACHINE), RULES)) == ["n1"]
    assert places(judge(failed("n1", 1, 2, fault=Fault.MACHINE), RULES)) == []


def test_a_task_that_says_it_is_useless_accuses_no_node():
    assert places(judge([*failed("n1", 1, 2, 3, fault=Fault.TASK), *passed("n2", 4, 5, 6)], RULES)) == []


def test_a_step_that_fails_on_all_nodes_that_tried_it_is_failing_and_no_node_is_shut():
    judgement = judge([*failed("n1", 1, 2), *failed("n2", 3, 1)], RULES)
    assert [each.step for each in judgement.failing] == [STEP]
    assert "3 tasks" in judgement.failing[0].reason
    assert judgement.shut == ()


def test_a_step_that_only_one_of_several_nodes_tried_may_be_that_nodes_fault():
    assert judge(failed("n1", 1, 2, 3), RULES).failing == ()
    assert len(judge(failed("n1", 1, 2, 3, offered=1), RULES).failing) == 1


def test_the_trial_decides():
    on_trial: dict[str, Any] = {"quarantine": Quarantine.TRIAL, "times": 1}
    before = failed("n1", 1, 2, 3, **on_trial)
    assert judge(before, RULES) == Judgement()
    assert judge([*before, *passed("n1", 4, is_trial=True, **on_trial)], RULES).lift[0].place == Place("n1", "gpu")
    again = judge([*before, *failed("n1", 4, is_trial=True, **on_trial)], RULES)
    assert places(again) == ["n1"]
    assert again.shut[0].probe_in == 2 * RULES.probe


def test_pauses_between_probes_double_up_to_their_limit():
    assert [pause(n, RULES) for n in range(3)] == [RULES.probe, 2 * RULES.probe, 4 * RULES.probe]
    assert pause(10**9, RULES) == RULES.longest_probe == timedelta(minutes=30)


faults = st.sampled_from([None, None, Fault.UNKNOWN, Fault.UNKNOWN, Fault.TASK, Fault.MACHINE])
histories = st.lists(
    st.builds(
        ended,
        st.sampled_from(["n1", "n2", "n3"]),
        st.integers(1, 12),
        faults,
        step=st.sampled_from([STEP, Step(UUID(int=1), "mux")]),
    ),
    max_size=40,
)


def accuse(history: Sequence[Conclusion], node: str) -> list[Conclusion]:
    """What could speak against a node: its failures, but for those that are the task's own."""
    return [each for each in history if each.place.node == node and each.fault in (Fault.UNKNOWN, Fault.MACHINE)]


@given(histories)
def test_nobody_is_shut_without_as_many_failures_as_the_rules_say(history: list[Conclusion]):
    for node in places(judge(history, RULES)):
        assert len(accuse(history, node)) >= RULES.failures


@given(histories)
@example(failed("n1", 1, 1, 1, 1, 1, fault=Fault.MACHINE))
def test_one_task_never_shuts_a_service(history: list[Conclusion]):
    for node in places(judge(history, RULES)):
        assert len({each.task_id for each in accuse(history, node)}) > 1


@given(histories)
def test_who_has_passed_every_step_last_is_not_shut(history: list[Conclusion]):
    again = [ended("n1", 99, step=step) for step in (STEP, Step(UUID(int=1), "mux"))]
    assert "n1" not in places(judge([*history, *again], RULES))


@given(histories)
def test_where_nothing_passes_only_machine_faults_shut_a_node(history: list[Conclusion]):
    nothing_passes = [each for each in history if each.fault is not None]
    for node in places(judge(nothing_passes, RULES)):
        assert sum(each.fault is Fault.MACHINE for each in accuse(nothing_passes, node)) >= RULES.failures


@given(histories)
def test_a_step_that_has_just_passed_somewhere_does_not_fail_everywhere(history: list[Conclusion]):
    judgement = judge([*history, ended("n3", 99)], RULES)
    assert STEP not in [each.step for each in judgement.failing]


@given(histories, st.integers(3, 6))
def test_stricter_rules_shut_no_more(history: list[Conclusion], failures: int):
    stricter = QuarantineRules(failures=failures + 1)
    assert set(places(judge(history, stricter))) <= set(places(judge(history, QuarantineRules(failures=failures))))


def test_a_large_fleet_is_judged_in_a_moment():
    """As much as is kept of one step on 40 nodes."""
    nodes = [f"n{n}" for n in range(40)]
    rounds = range(0, 4000, 40)
    history = [
        ended(node, start + n, Fault.UNKNOWN if n % 2 else None) for start in rounds for n, node in enumerate(nodes)
    ]
    began = time.process_time()
    assert len(places(judge(history, RULES))) == 20
    assert time.process_time() - began < 2
