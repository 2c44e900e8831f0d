"""The run of records, in two forms (`polymq/kernel_forms.py`)."""
