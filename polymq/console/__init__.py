"""The console: operators' view of a broker in a browser.

It is a process of its own, and a client of the admin API like any other: whatever happens in it,
the broker serves its clients. It holds no rights of its own. Who uses it logs in as a user of the
broker, whose name and password go with each request to the API.
"""
