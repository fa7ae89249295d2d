from tests.people import alice, bob, oscar, sam, vera  # noqa: F401
from tests.processes import check, crew, ground, web, workers  # noqa: F401
from tests.sandbox_fixture import sandbox, sandbox_process  # noqa: F401
