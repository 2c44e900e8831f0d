"""The inner loops over MQTT packets, each in two forms (`polymq/kernel_forms.py`)."""
