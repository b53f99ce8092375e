"""Benchmarks that anybody can run: `python -m benchmarks compare`, `python -m benchmarks cores`.

corpus.py      the documents: text of your own, or text made here
containers.py  the same documents as text, JSON Lines, parquet, compressed, or thousands of files
measure.py     one run: a subprocess with a time-out, its time, and the memory of its process tree
environment.py the other tools in an environment of their own, and a vocabulary for them
ways.py        what is compared: a script, its container, what its tokens must be
peers/         those ways, one script each
oracle.py      whether the tokens of a way are those of tiktoken
compare.py     shardmill beside what people use instead
machines.py    a dataset in parts against one run, on the same cores
cores.py       how many cores one run keeps busy, with an encoder that only sleeps
results.py     machine, versions, JSON, Markdown tables
plot.py        SVG
"""
