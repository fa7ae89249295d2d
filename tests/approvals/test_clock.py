"""The database's clock moves while a transaction stands."""

import pytest
from django.db import transaction

from approvals import clock
from approvals.models import Approval


@pytest.mark.django_db
def test_time_passes_inside_a_transaction(pending):
    with transaction.atomic():
        first = clock.now()
        assert clock.now() > first
        compared = Approval.objects.annotate(at=clock.ClockTimestamp()).get()
    assert compared.at > first
    assert first.utcoffset() is not None
