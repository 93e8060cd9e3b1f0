"""Parts of the launcher that programs import."""
