"""Who counts as somebody who may decide, and as somebody known."""

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User

from approvals import people

pytestmark = pytest.mark.django_db


def test_the_right_may_come_from_a_group(vera):
    group = Group.objects.create(name="approvers")
    group.permissions.add(Permission.objects.get(codename="decide_approval"))
    assert not people.may_decide(vera)
    vera.groups.add(group)
    stored = people.stored(vera)
    assert stored is not None
    assert people.may_decide(stored)


def test_nobody_in_particular_may_not_decide():
    assert people.stored(AnonymousUser()) is None
    assert not people.may_decide(AnonymousUser())


def test_a_person_is_known_exactly_while_somebody_has_that_name(alice):
    assert people.actor(alice) == "user:alice"
    assert people.is_known("user:alice")
    assert not people.is_known("user:Alice")
    User.objects.filter(username="alice").update(username="alicia")
    assert not people.is_known("user:alice")


@pytest.mark.parametrize("actor", ["", ":", "user:", "system:", "token:abc", "alice", "robot:x"])
def test_whoever_cannot_be_told_apart_is_unknown(alice, actor):
    assert not people.is_known(actor)


def test_a_system_is_known_and_has_no_hands():
    assert people.is_known("system:nightly")
