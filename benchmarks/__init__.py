"""Load generators, the comparison against other brokers, and the kernels' own figures."""
