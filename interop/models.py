"""How huggingface_hub splits a model into shards, and how it reads one; see peer.py."""

import json
import pathlib

import huggingface_hub
import peer
import safetensors.numpy
from huggingface_hub import constants
from huggingface_hub.serialization import _torch as hub
from huggingface_hub.serialization._base import parse_size_to_int, split_state_dict_into_shards_factory


@peer.op
def split(args, blobs):
    """The tensors of each file, and the index file, for tensors of the given sizes in order."""
    found = split_state_dict_into_shards_factory(
        {t["name"]: t["size"] for t in args["tensors"]},
        get_storage_size=lambda size: size,
        filename_pattern=constants.SAFETENSORS_WEIGHTS_FILE_PATTERN,
        max_shard_size=args["limit"],
    )
    # As save_torch_state_dict writes it.
    index = {"metadata": {**found.metadata, **args["metadata"]}, "weight_map": found.tensor_to_filename}
    text = json.dumps(index, indent=2) if found.is_sharded else ""
    return found.filename_to_tensors, [text.encode()]


@peer.op
def parse_size(args, blobs):
    return parse_size_to_int(args["size"]), []


class Collector:
    """A model, as far as loading one cares."""

    def __init__(self, names):
        self.names, self.loaded = names, {}

    def state_dict(self):
        return dict.fromkeys(self.names)

    def load_state_dict(self, state, strict):
        assert not self.loaded.keys() & state.keys(), "a tensor in two shards"
        self.loaded.update(state)


@peer.op
def load_model(args, blobs):
    """What huggingface_hub's loader of sharded models makes of a folder. Its own reading of the
    index is used, and numpy in place of torch for what is in a shard."""
    hub._load_safetensors_file = lambda path, map_location: safetensors.numpy.load_file(path)
    model = Collector(args["names"])
    folder = pathlib.Path(args["path"])
    if (folder / constants.SAFETENSORS_INDEX_FILE).is_file():
        hub._load_sharded_checkpoint(model, folder, strict=True)
    else:
        model.load_state_dict(hub.load_state_dict_from_file(folder / constants.SAFETENSORS_SINGLE_FILE), strict=True)
    return peer.arrays(model.loaded, False)


@peer.op
def save_model(args, blobs):
    """Saves tensors of these bytes as huggingface_hub does, with numpy in place of torch, with
    transformers' way of writing the index where args["sorted"] says so."""
    state = {t["name"]: peer.array(t, b) for t, b in zip(args["tensors"], blobs, strict=True)}
    found = split_state_dict_into_shards_factory(
        state,
        get_storage_size=lambda a: a.nbytes,
        filename_pattern=constants.SAFETENSORS_WEIGHTS_FILE_PATTERN,
        max_shard_size=args["limit"],
    )
    folder = pathlib.Path(args["path"])
    for file, names in found.filename_to_tensors.items():
        safetensors.numpy.save_file({n: state[n] for n in names}, folder / file, metadata={"format": "pt"})
    if found.is_sharded:
        index = {"metadata": {**found.metadata, "total_parameters": 7}, "weight_map": found.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n" if args["sorted"] else json.dumps(index, indent=2)
        (folder / constants.SAFETENSORS_INDEX_FILE).write_text(text)
    return huggingface_hub.__version__, []
