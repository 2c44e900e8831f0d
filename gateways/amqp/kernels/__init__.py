"""The inner loops over AMQP frames, each in two forms (`polymq/kernel_forms.py`)."""
