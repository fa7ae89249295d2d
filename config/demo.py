"""The people of the demo: who may approve, operate, or only look."""

from django.contrib.auth.models import Group, Permission, User

from config.state import State, private_file

GROUPS = {
    "approvers": ["durable.view_run", "approvals.view_approval", "approvals.decide_approval"],
    "operators": [
        "durable.view_run",
        "durable.start_run",
        "durable.operate_run",
        "approvals.view_approval",
    ],
    "viewers": ["durable.view_run", "approvals.view_approval"],
}
# Name and group; nobody but `admin` is a superuser.
PEOPLE = {
    "ana": "approvers",
    "ben": "approvers",
    "olga": "operators",
    "victor": "viewers",
    "admin": None,
}


def invite(state: State, address: str) -> None:
    """Create the people who are missing, and write down how each of them logs in."""
    for name, permissions in GROUPS.items():
        group, _ = Group.objects.get_or_create(name=name)
        group.permissions.add(*_permissions(permissions))
    lines = [address, ""]
    for name, group_name in PEOPLE.items():
        password = state.secret(f"password-{name}")
        _person(name, group_name, password)
        lines.append(f"{name:8} {password}   {group_name or 'superuser'}")
    private_file(state.logins, "\n".join(lines) + "\n")


def _permissions(names: list[str]) -> list[Permission]:
    """Return the permissions of these names, which the models declare."""
    found: list[Permission] = []
    for name in names:
        app, codename = name.split(".")
        found += Permission.objects.filter(content_type__app_label=app, codename=codename)
    return found


def _person(name: str, group_name: str | None, password: str) -> None:
    """Create one person; one who exists keeps the password, which may be a new one by now."""
    if User.objects.filter(username=name).exists():
        return
    create = User.objects.create_user if group_name else User.objects.create_superuser
    person = create(name, f"{name}@standfast.example", password)
    person.groups.set(Group.objects.filter(name=group_name))
