"""The store's inner loops, each in two forms (`polymq/kernel_forms.py`)."""
