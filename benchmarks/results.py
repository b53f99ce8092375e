"""What a result says of its machine, and where results are kept."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(__file__).parent / "results"


def frame(kind: str, **content: Any) -> dict[str, Any]:
    """A result: what was measured, when, and on what."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"kind": kind, "date": date, "machine": machine(), **content}


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def heading(result: dict[str, Any]) -> str:
    """The paragraph that stands above every table."""
    machine, text = result["machine"], result["text"]
    others = max((share for row in result["rows"] for share in row["others"]), default=0.0)
    documents = f" in {text['documents']:,} documents" if "documents" in text else ""
    return (
        f"{result['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory'] / 1e9:.0f} GB, "
        f"{machine['system']}. Text: {text['description']}, {text['bytes'] / 1e6:,.0f} MB{documents}. "
        f"{result['workers']} workers, memory {result['memory']}. "
        f"Other work on the machine took up to {others:.1f} cores."
    )


def save(result: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write a dated file; an earlier result is never overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = result["date"][:19].replace(":", "").replace("T", "-")
    path = folder / f"{stamp}-{result['kind']}.json"
    with path.open("x") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    return path
