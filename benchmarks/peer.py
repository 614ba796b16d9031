"""Python's safetensors, numpy, ml_dtypes and torch as a subprocess.

One tab-separated request a line on stdin, one reply a line on stdout, timed in
here so that neither the start of the process, nor imports, nor the pipe count.
"""

import gc
import importlib.metadata
import os
import sys
import time

import ml_dtypes
import numpy
import safetensors
import safetensors.numpy

DTYPES = {
    "F32": numpy.float32,
    "F16": numpy.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}

kept = {}  # inputs that stay between requests


def keep(key, make):
    """The kept value of key; there is never more than one."""
    if key not in kept:
        kept.clear()
        gc.collect()
        kept[key] = make()
    return kept[key]


def clock(n, work):
    start = time.perf_counter_ns()
    for _ in range(n):
        work()
    return time.perf_counter_ns() - start


def versions():
    names = ["safetensors", "numpy", "ml_dtypes", "torch"]
    found = []
    for name in names:
        try:
            found.append(f"{name}={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ",".join([f"python={sys.version.split()[0]}"] + found)


def open_(path, name, n):
    def work():
        with safetensors.safe_open(path, "numpy") as f:
            f.get_tensor(name)

    return clock(int(n), work)


def tensor(path, name, n):
    with safetensors.safe_open(path, "numpy") as f:
        return clock(int(n), lambda: f.get_tensor(name))


def load(path):
    start = time.perf_counter_ns()
    tensors = safetensors.numpy.load_file(path)
    took = time.perf_counter_ns() - start
    assert tensors
    return took


def save(src, dst, sync):
    tensors = keep(("save", src), lambda: safetensors.numpy.load_file(src))
    start = time.perf_counter_ns()
    safetensors.numpy.save_file(tensors, dst)
    if sync == "sync":
        for name in (dst, os.path.dirname(dst)):
            fd = os.open(name, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    return time.perf_counter_ns() - start


def weights(path, src, dst):
    """The numbers in path as src, and memory for them as dst, both in use."""
    data = numpy.fromfile(path, numpy.float32).astype(DTYPES[src])
    return data, numpy.ones(data.shape, DTYPES[dst])


def convert_numpy(path, src, dst, n):
    data, out = keep((path, src, dst), lambda: weights(path, src, dst))
    return clock(int(n), lambda: numpy.copyto(out, data, casting="unsafe"))


def convert_torch(path, src, dst, threads, n):
    import torch

    types = {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }

    def make():
        data = torch.from_numpy(numpy.fromfile(path, numpy.float32)).to(types[src])
        return data, torch.ones(data.shape, dtype=torch.float32).to(types[dst])

    torch.set_num_threads(int(threads))
    data, out = keep((path, src, dst, "torch"), make)
    return clock(int(n), lambda: out.copy_(data))


def slice_(rows, cols, start, stop, n):
    rows, cols, start, stop = int(rows), int(cols), int(start), int(stop)

    def make():
        return (
            numpy.ones((rows, cols), numpy.float32),
            numpy.ones((rows, stop - start), numpy.float32),
        )

    data, out = keep((rows, cols, start, stop), make)
    return clock(int(n), lambda: numpy.copyto(out, data[:, start:stop]))


REQUESTS = {
    "open": open_,
    "tensor": tensor,
    "load": load,
    "save": save,
    "numpy": convert_numpy,
    "torch": convert_torch,
    "slice": slice_,
}


def peak():
    """The most memory that this process has had resident, in bytes; 0 if unknown."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main():
    for line in sys.stdin:
        request, *fields = line.rstrip("\n").split("\t")
        try:
            if request == "versions":
                reply = f"ok\t0\t0\t{versions()}"
            else:
                took = REQUESTS[request](*fields)
                reply = f"ok\t{took}\t{peak()}"
        except Exception as err:  # the harness reports it beside the others' results
            text = str(err).replace("\n", " ").replace("\t", " ")
            reply = f"error\t{type(err).__name__}: {text}"
        print(reply, flush=True)


main()
