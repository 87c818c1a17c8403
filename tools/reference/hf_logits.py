"""Small random models of every family, with the logits and greedy tokens that transformers gives for them in FP32.

    python tools/reference/hf_logits.py [--out tests/golden/hf]

Each folder holds config.json, model.safetensors (or a .gguf beside it) and golden.json: a prompt's ids, the logits of its last
positions (little-endian FP32, base64) and the greedy continuation. Seeds are fixed; running again gives the same bytes.
"""

import argparse
import base64
import json
import shutil
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

PROMPT, LAST, GREEDY = 40, 8, 24
# Weights are stored in these types, and the expected logits are those of the rounded weights, computed in FP32.
DTYPES = {"smollm2": torch.float32, "llama": torch.bfloat16, "qwen2": torch.bfloat16,
          "qwen3": torch.bfloat16, "phi3": torch.bfloat16, "qwen3-d64": torch.bfloat16}
OTHERWISE = torch.float16


def rope(kind="default", theta=10000.0, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


SMALL = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, rms_norm_eps=1e-5)


def config(kind, **changes):
    return getattr(transformers, kind + "Config")(**{**SMALL, **changes})


LLAMA3 = rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def models():
    long = rope("longrope", short_factor=[1.0 + 0.05 * i for i in range(36)], long_factor=[2.0 + 0.1 * i for i in range(36)],
                partial_rotary_factor=0.75)
    long_64 = rope("longrope", short_factor=[1.0 + 0.05 * i for i in range(24)], long_factor=[2.0 + 0.1 * i for i in range(24)],
                   partial_rotary_factor=0.75)
    two_heads = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=64)
    return {
        "llama": config("Llama", hidden_size=36, num_attention_heads=9, num_key_value_heads=3, head_dim=64, rope_parameters=LLAMA3),
        "llama-linear": config("Llama", rope_parameters=rope("linear", factor=4.0)),
        "llama-d80": config("Llama", num_attention_heads=2, num_key_value_heads=1, head_dim=80, rope_parameters=rope()),
        "llama-d256": config("Llama", num_attention_heads=2, num_key_value_heads=1, head_dim=256, hidden_size=48, num_hidden_layers=1, rope_parameters=rope()),
        "llama-bias": config("Llama", attention_bias=True, rope_parameters=rope()),
        "smollm2": config("Llama", tie_word_embeddings=True, rope_parameters=rope(theta=100000.0)),
        "mistral": config("Mistral", sliding_window=None, head_dim=32, rope_parameters=rope()),
        "qwen2": config("Qwen2", hidden_size=224, num_hidden_layers=1, num_attention_heads=14, num_key_value_heads=2, vocab_size=128,
                        rope_parameters=rope(theta=1e6)),
        "qwen2-tied": config("Qwen2", tie_word_embeddings=True, rope_parameters=rope(theta=1e6)),
        "qwen3": config("Qwen3", hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=128, rope_parameters=rope(theta=1e6)),
        "phi3": config("Phi3", hidden_size=192, num_attention_heads=2, num_key_value_heads=1, intermediate_size=80, num_hidden_layers=1, vocab_size=96, pad_token_id=0,
                      
                       original_max_position_embeddings=128, rope_parameters=long, sliding_window=None),
        # Head dim 64, which a GPU serves, of the families that are smaller or larger above.
        "smollm2-d64": config("Llama", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=64, tie_word_embeddings=True, rope_parameters=rope(theta=100000.0)),
        "llama-llama3-d64": config("Llama", **two_heads, rope_parameters=LLAMA3),
        "llama-bias-d64": config("Llama", **two_heads, attention_bias=True, rope_parameters=rope()),
        "llama-linear-d128": config("Llama", num_attention_heads=2, num_key_value_heads=1, head_dim=128, rope_parameters=rope("linear", factor=4.0)),
        "mistral-d64": config("Mistral", **two_heads, sliding_window=None, rope_parameters=rope()),
        "qwen2-d64": config("Qwen2", hidden_size=128, num_attention_heads=2, num_key_value_heads=1, rope_parameters=rope(theta=1e6)),
        "qwen3-d64": config("Qwen3", **two_heads, rope_parameters=rope(theta=1e6)),
        "phi3-d64": config("Phi3", hidden_size=128, num_attention_heads=2, num_key_value_heads=1, intermediate_size=80, num_hidden_layers=1, pad_token_id=0,
                           original_max_position_embeddings=128, rope_parameters=long_64, sliding_window=None),
    }


def fill(model, seed):
    """Random weights that spread logits: matrices of 1.5 / sqrt(columns), norms around 1, biases that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.5 * noise)
            elif "embed" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.5 / parameter.shape[1] ** 0.5 * noise)


def make(configuration, seed):
    kind = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}[configuration.model_type]
    configuration._attn_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(configuration).float().eval()
    fill(model, seed)
    return model


def expected(model, prompt):
    """Whole sequences at once, without a cache: what a cache must not change."""
    with torch.inference_mode():
        ids = prompt.clone()
        logits = model(ids[None], use_cache=False).logits[0, -LAST:]
        greedy, margins = [], []
        for _ in range(GREEDY):
            last = model(ids[None], use_cache=False).logits[0, -1]
            top = last.topk(2).values
            margins.append((top[0] - top[1]).item())
            greedy.append(int(last.argmax()))
            ids = torch.cat([ids, torch.tensor([greedy[-1]])])
    data = logits.float().numpy().astype("<f4").tobytes()
    return {"logits": base64.b64encode(data).decode(), "greedy": greedy, "least_margin": min(margins),
            "range": (logits.max() - logits.min()).item()}


def round_weights(model, dtype):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype).float())


def write(folder, model, prompt, dtype, extra=None):
    folder.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = str(dtype).removeprefix("torch.")
    text = json.loads(model.config.to_json_string(use_diff=False))
    # Written out plainly: what other programs read, without the library's own bookkeeping.
    for key in ("transformers_version", "_name_or_path", "id2label", "label2id", "output_attentions", "output_hidden_states",
                "return_dict", "problem_type", "is_encoder_decoder", "chunk_size_feed_forward", "use_cache", "pretraining_tp"):
        text.pop(key, None)
    text.update(extra or {})
    (folder / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    golden = {"prompt": prompt.tolist(), "last_positions": LAST, "vocabulary": model.config.vocab_size,
              **expected(model, prompt)}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def stored_tensors(model):
    skip = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return {name: tensor.contiguous() for name, tensor in sorted(model.state_dict().items()) if name not in skip}


def prompt_for(name, vocabulary):
    return torch.randint(0, vocabulary, (PROMPT,), generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


# --- AWQ: 4-bit codes of 128 rows share a scale and a zero point; eight codes lie in an int32 in the order below. ---
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 128


def awq_pack(codes):
    packed = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for place, column in enumerate(AWQ_ORDER):
        packed |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * place)
    return torch.from_numpy(packed.view(np.int32))


def make_awq(folder, name, **changes):
    model = make(config("Llama", hidden_size=128, intermediate_size=256, **changes, rope_parameters=rope()), zlib.crc32(name.encode()))
    stored = stored_tensors(model)
    state = dict(model.state_dict())
    for key in [k for k in stored if k.endswith("_proj.weight")]:
        weights = stored.pop(key).numpy().T  # AWQ keeps [inputs, outputs]
        grouped = weights.reshape(-1, GROUP, weights.shape[1])
        low, high = np.minimum(grouped.min(1), 0), np.maximum(grouped.max(1), 0)
        scales = ((high - low) / 15).astype(np.float16)
        zeros = np.clip(np.round(-low / scales.astype(np.float32)), 0, 15).astype(np.uint8)
        wide = scales.astype(np.float32)[:, None]
        codes = np.clip(np.round(grouped / wide) + zeros[:, None], 0, 15).astype(np.uint8)
        restored = (codes.astype(np.float32) - zeros[:, None]) * wide
        state[key] = torch.from_numpy(np.ascontiguousarray(restored.reshape(weights.shape).T))
        base = key.removesuffix("weight")
        stored[base + "qweight"] = awq_pack(codes.reshape(weights.shape))
        stored[base + "qzeros"] = awq_pack(zeros)
        stored[base + "scales"] = torch.from_numpy(scales)
    # The rest is FP16 in such checkpoints.
    for key, tensor in stored.items():
        if tensor.dtype == torch.float32:
            stored[key] = tensor.half()
            state[key] = stored[key].float()
    model.load_state_dict(state)
    write(folder / name, model, prompt_for(name, model.config.vocab_size), torch.float16,
          {"quantization_config": {
              "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}})
    save_file({k: v.contiguous() for k, v in sorted(stored.items())}, folder / name / "model.safetensors", metadata={"format": "pt"})


# --- GGUF ---
def random_blocks(kind, rows, columns, rng):
    """Valid K-quant blocks: random bytes with their FP16 scales made small and finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    places = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (size - 2,)}[kind.name]
    magnitude = {"Q4_K": 3e-4, "Q5_K": 1.5e-4, "Q6_K": 6e-5}[kind.name]
    middle = {"Q4_K": 7.5, "Q5_K": 15.5, "Q6_K": 1}[kind.name]  # so that the offset takes away the codes' mean
    for i, place in enumerate(places):
        scale = (magnitude * rng.uniform(0.5, 1.5, data.shape[:2]) * (1, middle)[i]).astype("<f2")
        data[..., place:place + 2] = scale.view(np.uint8).reshape(*data.shape[:2], 2)
    return data.reshape(rows, -1)


def make_gguf(folder, name, kind, rope_parameters, **size):
    k_quant = kind.name.endswith("_K")
    model = make(config("Llama", **size, rope_parameters=rope_parameters), zlib.crc32(b"gguf"))
    settings = model.config
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    roles = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}

    (folder / name).mkdir(parents=True)
    writer = gguf.GGUFWriter(folder / name / "model.gguf", "llama")
    writer.add_name(name)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(settings.hidden_size)
    writer.add_block_count(settings.num_hidden_layers)
    writer.add_feed_forward_length(settings.intermediate_size)
    writer.add_head_count(settings.num_attention_heads)
    writer.add_head_count_kv(settings.num_key_value_heads)
    writer.add_layer_norm_rms_eps(settings.rms_norm_eps)
    writer.add_rope_freq_base(settings.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(settings.hidden_size // settings.num_attention_heads)
    writer.add_vocab_size(settings.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(settings.vocab_size)])
    writer.add_token_types([1] * settings.vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)

    if rope_parameters["rope_type"] == "llama3":  # what its frequencies are divided by, as a tensor
        plain = rope_parameters["rope_theta"] ** -(np.arange(0, settings.head_dim, 2) / settings.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))

    state = {}
    for key, tensor in sorted(model.state_dict().items()):
        weights = tensor.numpy()
        if key in whole:
            target = whole[key]
        else:
            _, _, layer, role = key.removesuffix(".weight").split(".", 3)
            target = f"blk.{layer}.{roles[role]}.weight"
        heads = settings.num_attention_heads if "attn_q." in target else settings.num_key_value_heads if "attn_k." in target else 0
        if heads:  # the converter interleaves the two rotary halves
            weights = weights.reshape(heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)
        if weights.ndim == 1:
            writer.add_tensor(target, weights.astype(np.float32))
            state[key] = tensor
            continue
        data = random_blocks(kind, *weights.shape, rng) if k_quant else gguf.quants.quantize(np.ascontiguousarray(weights), kind)
        writer.add_tensor(target, data, raw_dtype=kind)
        restored = np.array(gguf.quants.dequantize(data, kind), np.float32)
        if heads:
            restored = restored.reshape(heads, -1, 2, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)
        state[key] = torch.from_numpy(np.ascontiguousarray(restored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model.load_state_dict(state)
    prompt = prompt_for(name, settings.vocab_size)
    golden = {"prompt": prompt.tolist(), "last_positions": LAST, "vocabulary": settings.vocab_size,
              **expected(model, prompt)}
    (folder / name / "golden.json").write_text(json.dumps(golden) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("tests/golden/hf"))
    folder = parser.parse_args().out
    torch.set_num_threads(1)
    if folder.exists():
        shutil.rmtree(folder)
    for name, configuration in models().items():
        model = make(configuration, zlib.crc32(name.encode()))
        dtype = DTYPES.get(name, OTHERWISE)
        round_weights(model, dtype)
        write(folder / name, model, prompt_for(name, model.config.vocab_size), dtype)
        save_file({k: v.to(dtype) for k, v in stored_tensors(model).items()}, folder / name / "model.safetensors", metadata={"format": "pt"})
        report(folder / name)
    for name, changes in {"llama-awq": {"head_dim": 32},
                          "llama-awq-d64": {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}}.items():
        make_awq(folder, name, **changes)
        report(folder / name)
    k_size = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, vocab_size=64)  # K-quants: blocks of 256 columns
    d64 = dict(hidden_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    for kind in ("F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"):
        name, type = "gguf-" + kind.lower(), gguf.GGMLQuantizationType[kind]
        make_gguf(folder, name, type, rope(), **(k_size if kind.endswith("_K") else {}))
        report(folder / name)
        if not kind.endswith("_K"):
            make_gguf(folder, name + "-d64", type, LLAMA3, **d64)
            report(folder / (name + "-d64"))


def report(folder):
    golden = json.loads((folder / "golden.json").read_text())
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name:14} {size / 1024:7.0f} KiB  logits over {golden['range']:.2f}, least greedy margin {golden['least_margin']:.4f}", flush=True)


if __name__ == "__main__":
    main()
