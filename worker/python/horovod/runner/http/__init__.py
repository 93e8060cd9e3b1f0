"""A key-value store over HTTP, for programs that import it; hvd's own ranks do not use it."""
