"""A sample of the sources, and what it says of the whole; for `inspect`, and for `prepare` before it begins."""

from shardmill.sampling.download import download_speed, looking_fetcher
from shardmill.sampling.estimate import Amount, Expected, expected, histogram, output_sizes
from shardmill.sampling.places import NO_TEXT
from shardmill.sampling.sample import Kind, take_sample

__all__ = [
    "NO_TEXT",
    "Amount",
    "Expected",
    "Kind",
    "download_speed",
    "expected",
    "histogram",
    "looking_fetcher",
    "output_sizes",
    "take_sample",
]
