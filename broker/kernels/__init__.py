"""The steps of the engine that every run of messages takes, each in two forms
(`polymq/kernel_forms.py`)."""
