"""The API of runs, questions and outside actions. Views find, validate, act and show."""
