"""The inner loop over JSON texts, in two forms (`polymq/kernel_forms.py`)."""
