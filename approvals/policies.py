"""Which actions need a person, and on what terms.

Pure but for the registry. Policies are found in each installed app's `policies.py`, as Django
finds `admin.py`:

    policies.register(
        Policy(
            name="large-charge",
            effect="charge",
            when=lambda parameters: Decimal(parameters["amount"]) > 5000,
            decide_within=timedelta(hours=24),
            valid_for=timedelta(hours=1),
            sentence="Charges over 5,000 need one approver who did not request them",
        )
    )

Every policy of the effect is asked. All that apply have to be satisfied, so the strictest terms
of all of them hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from approvals.errors import InvalidPolicy
from durable import canonical
from durable.canonical import JSON


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When an effect needs a person. Raises InvalidPolicy where it is declared.

    `when` gets a copy of the parameters. It applies unless it returns False: a condition that
    raises, or answers with anything else, asks a person.
    """

    name: str
    effect: str
    when: Callable[[Mapping[str, JSON]], bool]
    decide_within: timedelta  # from the request to the last moment of a decision
    valid_for: timedelta  # from the approval to the last moment at which the action may start
    sentence: str  # for people: who has to agree to what
    version: int = 1  # raise it with every change that makes the policy stricter
    votes: int = 1
    no_self_approval: bool = True

    def __post_init__(self) -> None:
        if not (self.name and self.effect and self.sentence):
            raise InvalidPolicy("A policy needs a name, an effect and a sentence.")
        if not callable(self.when):
            raise InvalidPolicy(f"The condition of policy {self.name!r} is not a function.")
        if min(self.decide_within, self.valid_for) < timedelta(seconds=1):
            raise InvalidPolicy(f"Policy {self.name!r} leaves no time to decide or to act.")
        if self.version < 1:
            raise InvalidPolicy(f"The version of policy {self.name!r} is below 1.")
        if self.votes != 1:
            # Counting one vote where two were meant would fail open.
            raise InvalidPolicy(f"Policy {self.name!r} wants {self.votes} votes; only 1 works yet.")

    def applies(self, parameters: Mapping[str, JSON]) -> bool:
        """Whether a person has to be asked about these parameters. Never raises."""
        try:
            # A copy, so that no condition changes what is sent.
            answer = self.when(canonical.plain(parameters))
        except Exception:  # fail closed: what cannot be read has to be looked at
            return True
        return answer is not False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all the policies that apply to one action demand together."""

    policies: Mapping[str, int]  # name -> version
    decide_within: timedelta
    valid_for: timedelta
    no_self_approval: bool
    sentence: str

    @property
    def name(self) -> str:
        return ", ".join(self.policies)

    def cover(self, asked: Terms) -> bool:
        """Whether a request made on these terms satisfies what is `asked` today.

        A newer version covers an older one, so that old and new workers of a rolling deploy do
        not undo each other's requests.
        """
        mine = self.policies
        return all(mine.get(name, 0) >= version for name, version in asked.policies.items())


_policies: dict[str, Policy] = {}


def register(policy: Policy) -> Policy:
    """Put a policy in force. Raises InvalidPolicy if another one has its name."""
    if _policies.setdefault(policy.name, policy) is not policy:
        raise InvalidPolicy(f"Two policies are called {policy.name!r}.")
    return policy


def registered() -> Sequence[Policy]:
    """Every policy in force."""
    return tuple(_policies.values())


def asking(effect: str, parameters: Mapping[str, JSON]) -> Terms | None:
    """The terms on which this action may happen; None when no policy asks for anyone."""
    applying = [p for p in _policies.values() if p.effect == effect and p.applies(parameters)]
    return combine(applying) if applying else None


def combine(policies: Sequence[Policy]) -> Terms:
    """The strictest terms of them all, so that agreeing once satisfies each."""
    ordered = sorted(policies, key=lambda policy: policy.name)
    return Terms(
        policies={policy.name: policy.version for policy in ordered},
        decide_within=min(policy.decide_within for policy in ordered),
        valid_for=min(policy.valid_for for policy in ordered),
        no_self_approval=any(policy.no_self_approval for policy in ordered),
        sentence=". ".join(policy.sentence.rstrip(".") for policy in ordered),
    )


def snapshot(terms: Terms) -> dict[str, Any]:
    """The terms as JSON for the request; durations in seconds."""
    return {
        "policies": dict(terms.policies),
        "votes": 1,
        "decide_within": terms.decide_within.total_seconds(),
        "valid_for": terms.valid_for.total_seconds(),
        "no_self_approval": terms.no_self_approval,
        "sentence": terms.sentence,
    }


def read(stored: object) -> Terms:
    """The terms of a snapshot. Raises InvalidPolicy for one that `snapshot` did not write."""
    match stored:
        case {
            "policies": dict(versions),
            "votes": 1,
            "decide_within": int() | float() as decide_within,
            "valid_for": int() | float() as valid_for,
            "no_self_approval": bool(no_self_approval),
            "sentence": str(sentence),
        } if all(type(version) is int for version in versions.values()):
            return Terms(
                policies=versions,
                decide_within=timedelta(seconds=decide_within),
                valid_for=timedelta(seconds=valid_for),
                no_self_approval=no_self_approval,
                sentence=sentence,
            )
    raise InvalidPolicy("The stored terms of this request cannot be read.")
