"""The people of the tests: each has the rights of one demo group, and no other.

A conftest imports the fixtures: `alice` may approve, `bob` too, `oscar` operates, `vera` only
looks, `sam` has no rights at all. Django is imported inside: a conftest is read before its set-up.
"""

import pytest

RIGHTS = {
    "approver": ("view_run", "view_approval", "decide_approval"),
    "operator": ("view_run", "start_run", "operate_run", "view_approval"),
    "viewer": ("view_run", "view_approval"),
    "stranger": (),
}


def make_person(name: str, role: str):
    """Create a person with the rights of a role."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    # Hashing a password takes longer than most tests: who logs in by form sets one.
    person = get_user_model().objects.create_user(username=name)
    person.user_permissions.set(Permission.objects.filter(codename__in=RIGHTS[role]))
    return person


@pytest.fixture
def alice(db):
    """An approver."""
    return make_person("alice", "approver")


@pytest.fixture
def bob(db):
    """A second approver."""
    return make_person("bob", "approver")


@pytest.fixture
def oscar(db):
    """An operator."""
    return make_person("oscar", "operator")


@pytest.fixture
def vera(db):
    """A viewer."""
    return make_person("vera", "viewer")


@pytest.fixture
def sam(db):
    """Somebody with a login and no rights."""
    return make_person("sam", "stranger")
