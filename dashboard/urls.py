"""The addresses of the pages."""

from django.contrib.auth import views as login
from django.urls import path

from dashboard.views import approvals, effects, inbox, operations, questions, runs

app_name = "dashboard"

urlpatterns = [
    path("login/", login.LoginView.as_view(), name="login"),
    path("logout/", login.LogoutView.as_view(next_page="/login/"), name="logout"),
    path("", inbox.inbox, name="inbox"),
    path("approvals/<uuid:approval_id>/", approvals.approval, name="approval"),
    path("approvals/<uuid:approval_id>/values/<int:position>/", approvals.value, name="value"),
    path("runs/", runs.run_list, name="runs"),
    path("runs/<uuid:run_id>/", runs.run_page, name="run"),
    path("runs/<uuid:run_id>/status/", runs.status, name="run-status"),
    path("runs/<uuid:run_id>/cancel/", runs.cancel, name="cancel"),
    path("runs/<uuid:run_id>/resume/", runs.resume, name="resume"),
    path("runs/<uuid:run_id>/give-up/", runs.give_up, name="give-up"),
    path("runs/<uuid:run_id>/events/<int:seq>/", runs.event, name="event"),
    path("search/", runs.find, name="search"),
    path("operations/", operations.operations, name="operations"),
    path("effects/<uuid:operation_id>/", effects.effect, name="effect"),
    *(
        path(f"effects/<uuid:operation_id>/{way}/", effects.settle, {"way": way}, name=way)
        for way in ("ask", "happened", "not-happened")
    ),
    path(
        "effects/<uuid:operation_id>/give-up/",
        effects.settle,
        {"way": "give-up"},
        name="give-up-effect",
    ),
    path("questions/<uuid:interrupt_id>/", questions.question, name="question"),
]
