"""The product's settings, with the workflows of the scenarios and their faults."""

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.scenarios"]
