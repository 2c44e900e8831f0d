"""Queues, what they can do beyond first in, first out, and who reads them how far."""
