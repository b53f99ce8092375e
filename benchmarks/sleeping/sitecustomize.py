"""Found by every Python process whose PYTHONPATH begins with this folder: its encoder only sleeps."""

from benchmarks.cores import sleep_instead

sleep_instead()
