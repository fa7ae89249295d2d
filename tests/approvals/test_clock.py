"""The database's clock moves while a transaction stands."""

import pytest
from django.db import transaction

from approvals import clock


@pytest.mark.django_db
def test_time_passes_inside_a_transaction():
    with transaction.atomic():
        first = clock.now()
        assert clock.now() > first
    assert first.utcoffset() is not None
