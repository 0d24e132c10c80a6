"""How fast a layer of experts is loaded from a file, and what memory that takes. Not a test.

python tests/kernels/bench_load.py [FORMAT ...] [--gib N] [--threads N] [--pools N] [--folder DIR] [--repeats N]

Writes a checkpoint-like file of one layer (gates, ups and downs of 64 experts of 2048 x 768, one matrix after the
other), then loads it warm (all of it in the page cache) and cold (none of it). Columns: GB/s of stored bytes, median
and range; shares of the memory's read rate and of the rate at which fresh memory can be filled (warm), or of plain
reads of the same file (cold), each measured right beside; the most anonymous memory above what the process had, relative to the weights.
"""

import argparse
import ctypes
import gc
import mmap
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kt_core.formats import FORMATS
from kt_core.kernels import Experts, Pool
from kt_core.weights import Matrix

HIDDEN, INTERMEDIATE = 2048, 768
CHUNK = 8 << 20


def write(path, format, gib):
    """The file's experts: how many there are and the matrices' sizes follow from the format and gib."""
    shapes = [(INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)]
    kind = FORMATS[format]
    sizes = [rows * cols // kind.block_size * kind.block_bytes for rows, cols in shapes]
    experts = max(1, int(gib * 2**30) // sum(sizes))
    block = [np.random.default_rng(0).integers(64, 112, size, dtype=np.uint8).tobytes() for size in sizes]
    with path.open("wb") as file:
        for data in block:
            for _ in range(experts):
                file.write(data)
        os.fsync(file.fileno())
    return experts, shapes, sizes


def matrices(path, format, experts, shapes, sizes):
    """(gate, up, down) of each expert over a fresh map of the file."""
    data = np.memmap(path, np.uint8, "r")
    starts = [0, experts * sizes[0], experts * (sizes[0] + sizes[1])]
    return [
        tuple(
            Matrix(format, rows, cols, np.asarray(data[start + e * size : start + (e + 1) * size]).reshape(rows, -1))
            for (rows, cols), start, size in zip(shapes, starts, sizes, strict=True)
        )
        for e in range(experts)
    ]


def forget(path):
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path, threads):
    """Seconds to read the whole file in large pieces on some threads."""
    buffers = [bytearray(CHUNK) for _ in range(threads)]
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:

        def part(index):
            for at in range(index * CHUNK, size, threads * CHUNK):
                os.preadv(file.fileno(), [buffers[index]], at)

        start = time.perf_counter()
        list(pool.map(part, range(threads)))
        return time.perf_counter() - start


def fill_rate(nbytes, threads):
    """Bytes per second at which the threads write to memory that the process has just got, huge pages advised."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    base, part = ctypes.addressof(ctypes.c_char.from_buffer(memory)), nbytes // threads
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda index: ctypes.memset(base + index * part, 1, part), range(threads)))
    return nbytes / (time.perf_counter() - start)


class Peak(threading.Thread):
    """The most anonymous memory while it runs, sampled each 2 ms."""

    def __init__(self):
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.most = self.first = anonymous()

    def run(self):
        while not self.stopped.wait(0.002):
            self.most = max(self.most, anonymous())

    def stop(self):
        self.stopped.set()
        self.join()
        return max(self.most, anonymous()) - self.first


def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def load(pool, parts):
    """Seconds to load all experts, the most memory meanwhile, and the weights' bytes."""
    layer = Experts(len(parts), HIDDEN, INTERMEDIATE, pool=pool)
    peak = Peak()
    peak.start()
    start = time.perf_counter()
    layer.load_all(parts)
    took = time.perf_counter() - start
    return took, peak.stop(), layer.nbytes


def shown(values):
    return f"{statistics.median(values):6.2f} ({min(values):.2f}..{max(values):.2f})"


def bench(path, format, arguments, pool):
    layout = write(path, format, arguments.gib)
    total = path.stat().st_size
    warm, cold, shares, filling, disk_shares, memory = [], [], [], [], [], []
    for _ in range(arguments.repeats):
        plain_read(path, 2)
        fill_rate(2 * total, 2)  # a virtual machine may have to get memory from its host first
        took, most, nbytes = load(pool, matrices(path, format, *layout))
        gc.collect()
        memory.append(most / nbytes)
        warm.append(total / took / 1e9)
        shares.append(100 * warm[-1] / (pool.read_rate(256 << 20, 3) / 1e9))
        filling.append(100 * warm[-1] / (fill_rate(total, arguments.threads) / 1e9))
        times = []
        for threads in (1, 4):
            forget(path)
            fill_rate(3 * total, 2)
            times.append(plain_read(path, threads))
        disk = min(times)
        forget(path)
        fill_rate(3 * total, 2)
        took, most, nbytes = load(pool, matrices(path, format, *layout))
        gc.collect()
        memory.append(most / nbytes)
        cold.append(total / took / 1e9)
        disk_shares.append(100 * disk / took)
    print(
        f"{format:8} warm {shown(warm)} GB/s, {shown(shares)} % of reads, "
        f"{shown(filling)} % of fills; cold {shown(cold)} GB/s, "
        f"{shown(disk_shares)} % of plain reads; memory {max(memory):.2f} of the weights",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=["BF16", "Q8_0", "Q4_K", "Q6_K"])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pools", type=int, default=1)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    pool = Pool([{"threads": max(1, arguments.threads // arguments.pools)}] * arguments.pools)
    print(f"{pool.info()['threads']} threads in {arguments.pools} groups; {arguments.gib} GiB a format")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for format in arguments.formats:
            bench(Path(folder) / format, format, arguments, pool)


if __name__ == "__main__":
    main()
