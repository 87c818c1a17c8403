// Finds what a MODEL argument names; nothing is downloaded.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace keel {

enum class ModelFiles { hf_folder, gguf, config_json };

struct ModelPath {
  ModelFiles kind;
  std::filesystem::path path;  // the folder, the .gguf file, or the config.json
  std::string name;            // for served-model-name: the folder's or file's name without .gguf, or org/name as written
};

// A folder (with config.json or at least a tokenizer), a .gguf file, a config.json (with --load-format dummy), or an
// org/name in the Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub; refs/main or the only
// snapshot). Throws Error saying where it looked.
ModelPath find_model(std::string_view model);

}  // namespace keel
