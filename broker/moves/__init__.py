"""Messages that leave a queue for another place: dead letters, and those set aside."""
