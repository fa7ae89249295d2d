"""The product's settings, with the workflows of the scenarios and their faults."""

from config.settings import *  # noqa: F403
from config.settings import DURABLE, INSTALLED_APPS, env

INSTALLED_APPS = [*INSTALLED_APPS, "tests.scenarios"]
if "SCENARIO_MAX_ATTEMPTS" in env:
    DURABLE = {**DURABLE, "MAX_ATTEMPTS": env.int("SCENARIO_MAX_ATTEMPTS")}
