"""Ops for slice_test.go: numpy's slices, and those of safetensors."""

import numpy as np
import peer
import safetensors


@peer.op
def slices(args, blobs):
    """The bytes and shapes of slices of one array: each a chain of indices, of which each is a list
    of [start, stop, step] for the first dimensions."""
    whole = peer.array(args["tensor"], blobs[0])
    return results(chain(whole, c) for c in args["chains"])


@peer.op
def file_slices(args, blobs):
    """The same by safe_open's get_slice from a file on disk, which takes one index of step 1."""
    with safetensors.safe_open(args["path"], framework="np") as f:
        whole = f.get_slice(args["name"])
        return results(whole[index(c[0])] for c in args["chains"])


def chain(a, indices):
    for i in indices:
        a = a[index(i)]
    return a


def index(ranges):
    return tuple(slice(*r) for r in ranges)


def results(arrays):
    arrays = list(arrays)
    return [list(a.shape) for a in arrays], [np.ascontiguousarray(a).tobytes() for a in arrays]
