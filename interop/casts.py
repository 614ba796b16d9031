"""Ops for convert_test.go: numpy and ml_dtypes convert what a file holds."""

import numpy as np
import peer

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@peer.op
def cast(args, blobs):
    """The bytes of an array of one dtype, converted to another, and a byte per element that is 1
    where it became NaN. F4 and F6 are packed on both sides."""
    with np.errstate(all="ignore"):
        a = unpack(args["from"], blobs[0])
        try:
            a = a.astype(peer.NUMPY[args["to"]])
        except TypeError:  # ml_dtypes lacks some pairs; a float32 holds what it has
            a = a.astype(np.float32).astype(peer.NUMPY[args["to"]])
        nan = np.isnan(a).astype(np.uint8) if np.dtype(a.dtype).kind in "fVc" else np.zeros(a.size, np.uint8)
    return None, [pack(args["to"], a), nan.tobytes()]


def unpack(dtype, data):
    raw = np.frombuffer(data, np.uint8)
    if dtype in BITS:
        raw = np.packbits(
            np.unpackbits(raw, bitorder="little").reshape(-1, BITS[dtype]), axis=1, bitorder="little"
        ).ravel()
    return raw.view(peer.NUMPY[dtype])


def pack(dtype, a):
    raw = np.ascontiguousarray(a).view(np.uint8)
    if dtype in BITS:
        bits = np.unpackbits(raw.reshape(-1, 1), axis=1, bitorder="little")[:, : BITS[dtype]]
        raw = np.packbits(bits.ravel(), bitorder="little")
    return raw.tobytes()
