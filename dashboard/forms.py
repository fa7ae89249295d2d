"""What people send: checked here for shape only. The engine decides whether it is allowed."""

from __future__ import annotations

from django import forms

from durable import canonical
from durable.errors import InvalidValue

REASON = 2000


class ReasonForm(forms.Form):
    """A repair always says why."""

    reason = forms.CharField(
        max_length=REASON, error_messages={"required": "Say why, for whoever reads this later."}
    )

    def clean_reason(self) -> str:
        """The reason with plain line breaks: a browser sends each as two characters."""
        reason: str = self.cleaned_data["reason"]
        return reason.replace("\r\n", "\n")


class HappenedForm(ReasonForm):
    """The outside action took place; what the service calls it, and what it answered."""

    resource_id = forms.CharField(
        max_length=500, error_messages={"required": "Enter the id that the service gave it."}
    )
    result = forms.CharField(required=False, strip=True)

    def clean_result(self) -> object:
        """The result as JSON; None when it is left empty."""
        text: str = self.cleaned_data["result"]
        if not text:
            return None
        try:
            return canonical.loads(text)
        except InvalidValue as error:
            raise forms.ValidationError(f"This is not valid JSON: {error}") from error


class AnswerForm(forms.Form):
    """An answer to a question: plain text, or JSON when the workflow needs more than text."""

    FORMATS = (("text", "Text"), ("json", "JSON"))

    format = forms.ChoiceField(choices=FORMATS)
    # Not stripped and not required: an empty text is an answer.
    answer = forms.CharField(required=False, strip=False)

    def value(self) -> object:
        """The answer as the workflow will see it. Raises InvalidValue."""
        text: str = self.cleaned_data["answer"]
        if self.cleaned_data["format"] == "json":
            return canonical.loads(text)
        # A browser sends every line break as two characters.
        return text.replace("\r\n", "\n")
