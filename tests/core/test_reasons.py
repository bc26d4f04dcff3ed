"""Reason codes: every word that is written as one is a member, and stored ones are read back."""

from enum import StrEnum
from typing import get_args

import pytest

from api.admin.node_acts import NodeAct
from core.base.reasons import ReasonCode, quota_code, stored_code, violation_code
from core.policy.verdict import LIFTABLE
from core.states import NodeState
from core.tables.kinds import LeaseKind
from strategies.plan.trust.certificate import Verdict


@pytest.mark.parametrize("words", [NodeAct, LeaseKind])
def test_acts_of_staff_and_kinds_of_leases_are_codes(words: type[StrEnum]) -> None:
    assert {str(ReasonCode(word)) for word in words} == {str(word) for word in words}


def test_verdicts_of_certificates_and_states_after_a_clean_check_are_codes() -> None:
    for word in (*get_args(Verdict), NodeState.READY, NodeState.MAINTENANCE):
        assert ReasonCode(word) == word


def test_every_code_has_a_meaning_that_is_a_sentence() -> None:
    for code in ReasonCode:
        assert code == code.name.lower()
        assert code.meaning.endswith(".")


def test_exceptions_lift_codes_of_rules() -> None:
    assert {ReasonCode(code) for code in LIFTABLE} == LIFTABLE


def test_stored_codes_are_read_back_also_those_with_a_name_in_them() -> None:
    assert stored_code("no_show") is ReasonCode.NO_SHOW
    assert quota_code("main") == stored_code("quota_main") == "quota_main"
    assert violation_code(ReasonCode.LAB_CAP) == stored_code("violation:lab_cap")
