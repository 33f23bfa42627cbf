"""Makes the random tiny models beside this file and their golden logits.

    python make_tiny_models.py [NAME...]    (all by default; torch, transformers, safetensors, gguf, numpy)

Every weight is rounded to bfloat16 first; the logits are Transformers' in float32 with eager attention on the
rounded weights, so a program that loads model.safetensors and computes in float32 should meet them closely.
README.md describes golden.json.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
VOCAB, PROMPT, GREEDY = 64, 48, 8

SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
             tie_word_embeddings=True)

# name: (transformers class, fields that differ from SMALL, number of shards)
MODELS = {
    "llama-yarn": ("Llama", dict(head_dim=16, rope_parameters=dict(
        rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32, beta_fast=8.0)), 1),
    "llama3": ("Llama", dict(tie_word_embeddings=False, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=32)), 1),
    "qwen2-bias": ("Qwen2", dict(num_attention_heads=3, num_key_value_heads=1, hidden_size=48, eos_token_id=[2, 3]), 1),
    "qwen2-window": ("Qwen2", dict(tie_word_embeddings=False, use_sliding_window=True, sliding_window=9,
                                   max_window_layers=1, num_attention_heads=2, num_key_value_heads=1), 1),
    "qwen3": ("Qwen3", dict(head_dim=16), 1),
    "mistral-window": ("Mistral", dict(num_attention_heads=2, num_key_value_heads=1, sliding_window=13), 1),
    "ministral-mixed": ("Ministral", dict(head_dim=16, sliding_window=11, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"]), 1),
    "nemo-sharded": ("Mistral", dict(tie_word_embeddings=False, sliding_window=None, hidden_size=40, head_dim=16,
                                     num_attention_heads=4, num_key_value_heads=1), 3),
    "qwen2-heads": ("Qwen2", dict(tie_word_embeddings=False, hidden_size=64, num_key_value_heads=4,
                                  max_position_embeddings=2048), 1),
}


def randomise(model, seed):
    """Weights large enough that attention is sharp and every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            x = (1.6 if "q_norm" in name or "k_norm" in name else 1.0) * (1 + 0.3 * x)
        elif name.endswith("bias"):
            x = 0.7 * x
        elif "embed" in name or "lm_head" in name:
            x = 0.5 * x
        else:
            gain = 1.8 if ("q_proj" in name or "k_proj" in name) else 1.0
            x = gain * x / p.shape[1] ** 0.5
        p.data = x.to(torch.bfloat16).to(torch.float32)


def save(model, config, directory, shards):
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    for old in directory.glob("*.safetensors*"):
        old.unlink()
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[i::shards]
        save_file({n: tensors[n] for n in mine}, directory / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in mine})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
             "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


GGUF_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def interleave(rows, heads):
    """Row i and row i + d/2 of a head become rows 2i and 2i + 1, as GGUF's llama architecture wants them."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def save_llama_gguf(model, config, directory):
    """The same weights as architecture llama; llama3 scaling as a tensor of divisors."""
    writer = gguf.GGUFWriter(directory / "model.gguf", "llama")
    writer.add_name("tiny " + directory.name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_parameters["rope_theta"] ** half
    writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32))
    for name, value in model.state_dict().items():
        x = value.numpy()
        if name == "model.embed_tokens.weight":
            out = "token_embd.weight"
        elif name == "model.norm.weight":
            out = "output_norm.weight"
        elif name == "lm_head.weight":
            out = "output.weight"
        else:
            _, _, layer, rest = name.split(".", 3)
            part = rest.removesuffix(".weight")
            out = f"blk.{layer}.{GGUF_NAMES[part]}.weight"
            if part == "self_attn.q_proj":
                x = interleave(x, config.num_attention_heads)
            if part == "self_attn.k_proj":
                x = interleave(x, config.num_key_value_heads)
        if x.ndim == 1:
            writer.add_tensor(out, x.astype(np.float32))
        else:
            bf16 = gguf.quantize(np.ascontiguousarray(x), gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(out, bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded(logits):
    return [float(f"{x:.7g}") for x in logits.tolist()]


def golden(model, name, seed):
    generator = torch.Generator().manual_seed(seed + 100000)
    ids = torch.randint(4, VOCAB, (PROMPT,), generator=generator).tolist()
    with torch.no_grad():
        prefill = model(torch.tensor([ids]), use_cache=False).logits[0]
        greedy, rows = [int(prefill[-1].argmax())], []
        for _ in range(GREEDY):
            step = model(torch.tensor([ids + greedy]), use_cache=False).logits[0, -1]
            rows.append(step)
            greedy.append(int(step.argmax()))
    top2 = torch.stack([prefill[-1]] + rows).topk(2, dim=-1).values
    rotary = model.model.rotary_emb
    return {
        "name": name,
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, eager",
        "inv_freq": [float(f"{x:.9g}") for x in rotary.inv_freq.tolist()],
        "rope_attention_scale": float(rotary.attention_scaling),
        "prompt_ids": ids,
        "prefill_logits": [rounded(row) for row in prefill],
        "greedy_ids": greedy,
        "decode_logits": [rounded(row) for row in rows],
        "smallest_top2_gap": round(float((top2[:, 0] - top2[:, 1]).min()), 4),
    }


def dump(data):
    """One line for each row of numbers."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and isinstance(value[0], list):
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f' "{key}": [\n  {rows}]')
        else:
            parts.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main():
    for number, (name, (family, fields, shards)) in enumerate(MODELS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        directory = HERE / name
        directory.mkdir(exist_ok=True)
        config = getattr(transformers, family + "Config")(**{**SMALL, **fields})
        config._attn_implementation = "eager"
        model_class = getattr(transformers, family + "ForCausalLM")
        # The first seed whose greedy tokens vary and are clear winners, so that rounding cannot swap them.
        for seed in range(1000 * number, 1000 * number + 1000):
            model = model_class(config).eval().to(torch.float32)
            randomise(model, seed)
            if config.tie_word_embeddings:
                model.tie_weights()
            result = golden(model, name, seed)
            if result["smallest_top2_gap"] > 0.15 and len(set(result["greedy_ids"])) >= 5:
                break
        else:
            raise SystemExit(f"{name}: no seed gives clear and varied tokens")
        config.architectures = [model_class.__name__]
        config.dtype = "bfloat16"
        config.save_pretrained(directory)
        save(model, config, directory, shards)
        if name == "llama3":
            save_llama_gguf(model, config, directory)
        for file in directory.glob("*.safetensors"):
            file.chmod(0o644)
        (directory / "golden.json").write_text(dump(result))
        print(name, "seed", seed, "gap", result["smallest_top2_gap"], "greedy", result["greedy_ids"])


if __name__ == "__main__":
    main()
