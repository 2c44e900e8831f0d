"""A configuration of mosquitto as settings of ours. Pure: text in, settings and remarks out.

`reading.py` reads the file as mosquitto does, `options.py` knows every option, `converting.py` and
`listeners.py` make settings, and `writing.py` writes them as TOML. Rules:

* Every line is accounted for: it is the source of a setting, or there is a remark about it.
* What is converted never lets a client do more than mosquitto did. If a listener has an option that
  cannot be converted and that kept clients out, the listener is not opened.
* What is written loads with the model of the settings.
"""
