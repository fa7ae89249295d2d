from tests.people import alice, bob, oscar, sam, vera  # noqa: F401
from tests.processes import (  # noqa: F401
    check,
    crew,
    ground,
    pytest_runtest_teardown,
    web,
    workers,
)
from tests.sandbox_fixture import sandbox, sandbox_process  # noqa: F401
