"""The inner part of the socket shell, in two forms (`polymq/kernel_forms.py`), and the compiled
socket plane."""
