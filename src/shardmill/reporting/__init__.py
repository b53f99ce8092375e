"""A finished dataset for people: a page with plots, a card, and both at the hub.

Not called `report`: `shardmill.report` is a function, and Python binds a submodule's name in its package.
"""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.reporting.dataset_card import card as card
    from shardmill.reporting.page import report as report
    from shardmill.reporting.publishing import PublishedDataset as PublishedDataset
    from shardmill.reporting.publishing import publish as publish

__all__, __getattr__ = lazily(
    "shardmill.reporting", {"dataset_card": "card", "page": "report", "publishing": "PublishedDataset publish"}
)
