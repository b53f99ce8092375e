"""Documents of finished datasets in some order: convert, shuffle, mix, pack."""

from typing import TYPE_CHECKING

from shardmill.lazy import lazily

if TYPE_CHECKING:
    from shardmill.arrange.arranging import block_tokens
    from shardmill.arrange.converting import convert
    from shardmill.arrange.inputs import InputSplit
    from shardmill.arrange.mixed_documents import TokensBefore
    from shardmill.arrange.mixing import KEY_UNITS, NEVER, Mixture, Stage, merge
    from shardmill.arrange.mixtures import (
        MixturePlan,
        mix,
        parse_stages,
        parse_weights,
        plan_mixture,
        write_mixture,
    )
    from shardmill.arrange.ordered import DocumentsOfSplit
    from shardmill.arrange.packed import PackedPieces, pack
    from shardmill.arrange.packed_index import PieceEntries, pack_index
    from shardmill.arrange.packing import PackingPlan, Slots, count_pieces
    from shardmill.arrange.placing import place_eot
    from shardmill.arrange.shuffled_text import ShuffledText
    from shardmill.arrange.shuffling import shuffle
    from shardmill.arrange.sorting import FACTS, LEAST_MEMORY, LEFT_OUT, Block, Sorter

# Imported on first use: sorting and packing need nothing of what makes a dataset.
__all__, __getattr__ = lazily(
    "shardmill.arrange",
    {
        "arranging": "block_tokens",
        "converting": "convert",
        "inputs": "InputSplit",
        "mixed_documents": "TokensBefore",
        "mixing": "KEY_UNITS NEVER Mixture Stage merge",
        "mixtures": "MixturePlan mix parse_stages parse_weights plan_mixture write_mixture",
        "ordered": "DocumentsOfSplit",
        "packed": "PackedPieces pack",
        "packed_index": "PieceEntries pack_index",
        "packing": "PackingPlan Slots count_pieces",
        "placing": "place_eot",
        "shuffled_text": "ShuffledText",
        "shuffling": "shuffle",
        "sorting": "FACTS LEAST_MEMORY LEFT_OUT Block Sorter",
    },
)
