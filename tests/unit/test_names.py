"""What may be called how."""

import pytest

from accsd.errors import InvalidValue
from accsd.values.names import check_service_name, check_step_key, variable_suffix


@pytest.mark.parametrize("name", ["a", "0", "audio-norm", "yt_upload.v2", "x" * 40])
def test_usual_names_are_accepted(name: str):
    assert check_service_name(name) == name
    assert check_step_key(name) == name


@pytest.mark.parametrize("name", ["", "-x", "_x", ".x", "a b", "a/b", "a\n", "é", "$(x)"])
def test_names_that_mean_something_elsewhere_are_refused(name: str):
    for check in (check_service_name, check_step_key):
        with pytest.raises(InvalidValue):
            check(name)


def test_a_message_about_a_name_stays_short_and_on_one_line():
    with pytest.raises(InvalidValue) as refusal:
        check_service_name("x\n" * 500)

    assert len(str(refusal.value)) < 250
    assert "\n" not in str(refusal.value)


def test_a_services_variable_is_in_capitals_with_underscores():
    assert variable_suffix("audio-norm.v2") == "AUDIO_NORM_V2"
