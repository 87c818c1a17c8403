// Which model this is, so that what was found about it is never said of another.
#pragma once

#include <string>

#include "base/worker_pool.h"
#include "files/model_path.h"
#include "model/weights.h"

namespace keel {

// Of what a forward depends on: config.json and every *.safetensors file of a folder, or the .gguf file; for dummy weights the
// config.json, the seed and the scale. Definition: SHA-256 over one line a part, in order of file name,
//   NAME SIZE H    where H = SHA-256 over the SHA-256s of the file's 16 MiB blocks, in hex.
// Large files' H are kept, by path, size and time of change, in $XDG_CACHE_HOME/keel/digests.json (or ~/.cache).
std::string model_digest(const ModelPath& path, const LoadOptions& options, WorkerPool& workers);

// Of what turns text into tokens and messages into text: tokenizer.json, tokenizer.model, tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja, those that are there; a .gguf's is the model's own. Empty where there is none.
std::string tokenizer_digest(const ModelPath& path, WorkerPool& workers);

}  // namespace keel
