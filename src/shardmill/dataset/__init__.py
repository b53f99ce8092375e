"""What can be done with a finished dataset: open, feed a trainer, verify, convert, show."""
