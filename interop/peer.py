"""Python's safetensors, numpy and ml_dtypes behind a pipe, for the Go tests.

A frame is a u32 little-endian length and that many bytes. A message is one frame of JSON and the
frames of bytes that it announces:

    request  {"op": "load", "args": {...}, "blobs": 2}   then 2 frames
    answer   {"ok": ..., "blobs": 1}                     then 1 frame
    failure  {"error": "SafetensorError: ...", "blobs": 0}

An op is a function of (args, blobs) that gives (value, blobs). Arguments of the command are the
names of further modules in this folder that register ops of their own:

    import peer

    @peer.op
    def cast(args, blobs): ...
"""

import ctypes
import hashlib
import importlib
import json
import pathlib
import struct
import sys
import traceback

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

OPS = {}

# Every dtype of the format that numpy has a type for, by the format's name.
NUMPY = {
    "BOOL": np.bool_,
    "F4": ml_dtypes.float4_e2m1fn,
    "F6_E2M3": ml_dtypes.float6_e2m3fn,
    "F6_E3M2": ml_dtypes.float6_e3m2fn,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "C64": np.complex64,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
}


def op(f):
    """Registers an op under the function's name."""
    OPS[f.__name__] = f
    return f


def array(tensor, data):
    """The numpy array of a {"dtype", "shape"} with one element per numpy item. F4 and F6, which
    numpy does not pack, have one byte an element here."""
    return np.frombuffer(data, dtype=NUMPY[tensor["dtype"]]).reshape(tensor["shape"])


def spec_name(dtype):
    """What TensorSpec calls a dtype: numpy's name, save for the packed one."""
    return "float4_e2m1fn_x2" if dtype == "F4" else np.dtype(NUMPY[dtype]).name


@op
def versions(args, blobs):
    """What is judging."""
    names = {"python": sys.version.split()[0]}
    for module in (safetensors, np, ml_dtypes):
        names[module.__name__] = module.__version__
    return names, []


@op
def save(args, blobs):
    """The file that safetensors.numpy.save writes for arrays of these bytes."""
    tensors = {t["name"]: array(t, b) for t, b in zip(args["tensors"], blobs, strict=True)}
    return None, [safetensors.numpy.save(tensors, metadata=args["metadata"])]


@op
def serialize(args, blobs):
    """The file that safetensors.serialize writes: the lower level, which has F4 too. It takes the
    shape as it is stored, two F4 an item."""
    buffers, specs = [], {}
    for t, b in zip(args["tensors"], blobs, strict=True):
        shape = list(t["shape"])
        if t["dtype"] == "F4":
            shape[-1] //= 2
        buffer = ctypes.create_string_buffer(b, max(1, len(b)))
        buffers.append(buffer)  # alive until the file is written
        specs[t["name"]] = safetensors.TensorSpec(
            dtype=spec_name(t["dtype"]),
            shape=shape,
            data_ptr=ctypes.addressof(buffer),
            data_len=len(b),
        )
    return None, [bytes(safetensors.serialize(specs, metadata=args["metadata"]))]


@op
def deserialize(args, blobs):
    """What safetensors.deserialize sees in a file: the lower level, which has all dtypes."""
    found = safetensors.deserialize(blobs[0])
    tensors = [{"name": n, "dtype": t["dtype"], "shape": t["shape"]} for n, t in found]
    return {"tensors": tensors}, [bytes(t["data"]) for _, t in found]


@op
def load(args, blobs):
    """What safetensors.numpy.load makes of a file, with the arrays as numpy has them: the dtype is
    numpy's name, and the values are lists where args["values"] asks for them."""
    return arrays(safetensors.numpy.load(blobs[0]), args["values"])


@op
def load_file(args, blobs):
    """What safe_open makes of a file on disk, and its metadata."""
    with safetensors.safe_open(args["path"], framework="np") as f:
        value, out = arrays({name: f.get_tensor(name) for name in f.keys()}, args["values"])
        value["metadata"] = f.metadata()
    return value, out


def arrays(loaded, values):
    tensors, blobs = [], []
    for name, a in loaded.items():
        tensor = {"name": name, "dtype": a.dtype.name, "shape": list(a.shape)}
        if values:
            tensor["values"] = a.ravel().tolist()
        tensors.append(tensor)
        blobs.append(np.ascontiguousarray(a).tobytes())
    return {"tensors": tensors}, blobs


@op
def hashes(args, blobs):
    """The tensors of a file on disk with the SHA-256 of their bytes."""
    with open(args["path"], "rb") as f:
        found = safetensors.deserialize(f.read())
    tensors = [
        {
            "name": n,
            "dtype": t["dtype"],
            "shape": t["shape"],
            "sha256": hashlib.sha256(t["data"]).hexdigest(),
        }
        for n, t in found
    ]
    with safetensors.safe_open(args["path"], framework="np") as f:
        return {"tensors": tensors, "metadata": f.metadata()}, []


@op
def published(args, blobs):
    """The safetensors files that installed packages ship, by the package's folder."""
    site = pathlib.Path(np.__file__).parent.parent
    return {p: [str(f) for f in sorted((site / p).rglob("*.safetensors"))] for p in args["packages"]}, []


def read_frame(stream):
    length = stream.read(4)
    if not length:
        return None
    (n,) = struct.unpack("<I", length)
    frame = stream.read(n)
    if len(frame) != n:
        raise EOFError("half a frame")
    return frame


def write_message(stream, message, blobs):
    for frame in [json.dumps({**message, "blobs": len(blobs)}).encode(), *blobs]:
        stream.write(struct.pack("<I", len(frame)))
        stream.write(frame)
    stream.flush()


def serve(stdin, stdout):
    while (frame := read_frame(stdin)) is not None:
        request = json.loads(frame)
        blobs = [read_frame(stdin) for _ in range(request["blobs"])]
        try:
            value, out = OPS[request["op"]](request["args"], blobs)
        except Exception as e:  # the test decides whether it is one
            traceback.print_exc()
            write_message(stdout, {"error": f"{type(e).__name__}: {e}"}, [])
        else:
            write_message(stdout, {"ok": value}, out)


if __name__ == "__main__":
    sys.modules["peer"] = sys.modules["__main__"]  # so that further modules register here
    for name in sys.argv[1:]:
        importlib.import_module(name)
    serve(sys.stdin.buffer, sys.stdout.buffer)
