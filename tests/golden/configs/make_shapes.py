"""Reads every configuration beside this file with Transformers and writes shapes.json, what it understood.

    python make_shapes.py    (torch, transformers)
"""
import json
import pathlib

import torch
import transformers
from transformers import AutoConfig

HERE = pathlib.Path(__file__).parent


def rotary(config):
    module = transformers.models.auto.modeling_auto.MODEL_MAPPING[type(config)].__module__
    name = type(config).__name__.removesuffix("Config") + "RotaryEmbedding"
    embedding = getattr(__import__(module, fromlist=[name]), name)(config)
    return embedding.inv_freq, embedding.attention_scaling


def windows(config):
    window = getattr(config, "sliding_window", None) or 0
    types = getattr(config, "layer_types", None)
    if types is None:
        return [window] * config.num_hidden_layers
    return [window if t == "sliding_attention" else 0 for t in types]


def shape(path):
    config = AutoConfig.for_model(**json.loads(path.read_text()))
    inv_freq, scale = rotary(config)
    eos = config.eos_token_id
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "family": config.model_type, "n_layers": config.num_hidden_layers, "hidden": config.hidden_size,
        "intermediate": config.intermediate_size, "n_q_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads, "head_dim": head_dim, "vocab": config.vocab_size,
        "context": config.max_position_embeddings, "rms_eps": config.rms_norm_eps,
        "tied_embeddings": config.tie_word_embeddings, "sliding_window": windows(config),
        "eos_ids": eos if isinstance(eos, list) else [eos], "bos_id": config.bos_token_id,
        "rope_attention_scale": float(scale), "inv_freq": [float(f"{x:.9g}") for x in inv_freq.to(torch.float32)],
    }


def main():
    out = {p.stem: shape(p) for p in sorted(HERE.glob("*.json")) if p.stem != "shapes"}
    lines = [f' "{name}": {json.dumps(value)}' for name, value in out.items()]
    (HERE / "shapes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
