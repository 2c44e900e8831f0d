"""What mosquitto's configuration becomes here: a mosquitto.conf, password files, access control
lists."""
