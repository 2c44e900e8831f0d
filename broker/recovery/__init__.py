"""How a start gets the state back, and how the state is saved for the next one."""
