"""Services with which ranks and a driver talk, for programs that import them."""
