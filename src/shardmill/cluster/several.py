"""A run in several processes, if one cannot keep all workers busy: they make parts, which this one merges."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from shardmill.cluster.place import PLAN, Place
from shardmill.cluster.planning import PartPlan, remove_all, store_parts
from shardmill.cluster.processes import DRIVER, amounts_of, count_parts, count_processes
from shardmill.errors import BudgetError
from shardmill.options import Options
from shardmill.run import Plan, check_memory, default_memory, resident, usable_cpus
from shardmill.units import parse_bytes
from shardmill.write import Destination, Progress, Result, fingerprint, raise_mismatch


def divide(plan: Plan, out: str, begun: PartPlan | None) -> PartPlan | None:
    """Store the parts of a plan that several processes should make; None: one should do all of it.

    `begun`: the parts of an unfinished run, which goes on with them. MismatchError if they are of another plan.
    """
    if begun is not None:
        if begun.fingerprint != fingerprint(plan.facts()):
            raise_mismatch(begun.facts(), plan.facts(), "an unfinished run")
        return store_parts(plan, out, None)  # with the options of this call
    workers, memory = _workers_and_memory(plan.options)
    amounts = amounts_of(plan, workers, memory - DRIVER)
    if amounts is None or (processes := count_processes(amounts)) < 2:
        return None
    whole = store_parts(plan, out, count_parts(amounts, processes))
    if len(whole.parts) < 2:
        whole.place.clear()
        return None
    return whole


def discard_plan(plan: Plan, out: str, destination: Destination) -> None:
    """Remove the plan that is there, with its parts and its dataset, before a run that overwrites them."""
    place = Place(out, plan.options.cache)
    if place.read(PLAN) is not None:
        remove_all(place, destination, plan.facts(), plan)


def run_in_processes(plan: Plan, whole: PartPlan, progress: Progress) -> Result:
    """Make the dataset of a divided plan, in fewer processes if something does not fit into the memory of one."""
    # Imported here, since most runs do not need it.
    from shardmill.cluster.driver import make_dataset
    from shardmill.cluster.local_executor import LocalExecutor

    started = time.monotonic()
    workers, memory = _workers_and_memory(plan.options)
    check_memory(plan.options.memory_bytes, workers)
    amounts = amounts_of(plan, workers, memory - DRIVER)
    processes = min(count_processes(amounts), len(whole.parts)) if amounts else 1
    while True:
        each = workers // processes if processes > 1 else plan.options.workers
        executor = LocalExecutor(whole.out, memory, each, processes)
        try:
            result = make_dataset(whole, executor, progress, memory=executor.driver_memory, named=False)
            return replace(result, seconds=time.monotonic() - started)
        except BudgetError as error:
            if processes == 1:
                error.hint = _raised(error.hint or "", executor.driver_memory)
                raise
            processes //= 2


def _workers_and_memory(options: Options) -> tuple[int, int]:
    workers = options.workers or usable_cpus()
    # As in one process, memory that a larger program already holds is not counted, unless a limit was set.
    return workers, options.memory_bytes or default_memory(workers) + max(0, resident() - DRIVER)


def _raised(hint: str, more: int) -> str:
    """The hint of a process of a run, with the memory that the run itself takes."""
    amount = re.search(r"(?<=--memory )\w+", hint)
    enough = -(-(parse_bytes(amount[0]) + more) // 1_000_000) if amount else 0
    return hint[: amount.start()] + f"{enough}MB" + hint[amount.end() :] if amount else hint
