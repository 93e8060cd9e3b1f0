"""What every framework's binding shares."""
