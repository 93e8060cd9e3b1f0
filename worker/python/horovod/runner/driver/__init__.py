"""What a launch knows of its hosts, for programs that import it."""
