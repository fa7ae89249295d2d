"""Who somebody is to approvals: the name that is recorded, and the rights that count now."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, User

RIGHT = "approvals.decide_approval"


def actor(person: User | AnonymousUser, *, by_token: bool = False) -> str:
    """The name under which what a person did, or a token of theirs, is recorded."""
    return f"{'token' if by_token else 'user'}:{person.get_username()}"


def stored(person: User | AnonymousUser) -> User | None:
    """The person as the database knows them now, without what this process has cached.

    A right that was taken away after a page was loaded does not count. None: there is no such
    person any more.
    """
    found: User | None = get_user_model()._default_manager.filter(pk=person.pk or 0).first()
    return found


def may_decide(person: User | AnonymousUser) -> bool:
    """Whether an active person has the right to decide."""
    return person.is_active and person.has_perm(RIGHT)


def is_known(requested_by: str) -> bool:
    """Whether it can be told who asked, so that no approver can be the requester in disguise.

    A person is known while somebody has that name: who was renamed or deleted since could be
    anyone. A system has no hands to approve with. A token says whose it is.
    """
    kind, _, name = requested_by.partition(":")
    if kind == "system":
        return bool(name)
    people = get_user_model()._default_manager
    return kind in ("user", "token") and people.filter(username=name).exists()
