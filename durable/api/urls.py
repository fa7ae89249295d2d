"""The addresses of the engine's API."""

from django.urls import path

from durable.api import effects, interrupts, runs

urlpatterns = [
    path("runs/", runs.Runs.as_view()),
    path("runs/<uuid:run_id>/", runs.Run.as_view()),
    path("runs/<uuid:run_id>/events/", runs.Events.as_view()),
    path("runs/<uuid:run_id>/cancel/", runs.Cancel.as_view()),
    path("runs/<uuid:run_id>/resume/", runs.Resume.as_view()),
    path("runs/<uuid:run_id>/give-up/", runs.GiveUp.as_view()),
    path("interrupts/", interrupts.Interrupts.as_view()),
    path("interrupts/<uuid:interrupt_id>/answer/", interrupts.Answer.as_view()),
    path("effects/<uuid:operation_id>/", effects.Effect.as_view()),
    path("effects/<uuid:operation_id>/resolve/", effects.Resolve.as_view()),
    path("effects/<uuid:operation_id>/ask/", effects.Ask.as_view()),
]
