"""The pages, one module per screen. A view looks up what the person may see, and renders it."""
