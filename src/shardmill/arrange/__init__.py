"""Documents of finished datasets in training order: the mathematics of packing and of mixtures."""

from shardmill.arrange.mixing import KEY_UNITS, NEVER, Mixture, Stage, merge
from shardmill.arrange.packing import PackingPlan, Slots, count_pieces

__all__ = ["KEY_UNITS", "NEVER", "Mixture", "PackingPlan", "Slots", "Stage", "count_pieces", "merge"]
