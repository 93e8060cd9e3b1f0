"""What runs on each host of a launch, for programs that import it."""
