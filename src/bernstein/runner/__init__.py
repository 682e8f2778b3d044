"""Opens, wires and closes one run of a plan."""
