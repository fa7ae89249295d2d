"""What pages and the API read of runs: each function fetches all that one page needs.

Reads only. Every list is bounded, so that a page stays quick with a million runs and with a run
of thirty thousand events; the number of statements of each function is pinned by a test.
"""

from durable.queries.counts import Position as Position
from durable.queries.effects import EffectPage as EffectPage
from durable.queries.effects import effect_page as effect_page
from durable.queries.operations import operations as operations
from durable.queries.questions import QuestionPage as QuestionPage
from durable.queries.questions import question_page as question_page
from durable.queries.run_lists import View as View
from durable.queries.run_lists import run_list as run_list
from durable.queries.run_pages import RunPage as RunPage
from durable.queries.run_pages import event_page as event_page
from durable.queries.run_pages import is_live as is_live
from durable.queries.run_pages import pretty as pretty
from durable.queries.run_pages import run_page as run_page
