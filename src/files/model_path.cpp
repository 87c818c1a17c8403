#include "files/model_path.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "base/error.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

bool has_file(const fs::path& folder, const char* name) {
  return fs::is_regular_file(folder / name);
}

std::vector<fs::path> files_with_extension(const fs::path& folder, const char* extension) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == extension && entry.is_regular_file())
      found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// What a folder holds. One GGUF file speaks for its folder unless safetensors lie beside it.
ModelPath in_folder(const fs::path& folder, std::string name) {
  const std::vector<fs::path> ggufs = files_with_extension(folder, ".gguf");
  const bool has_safetensors = !files_with_extension(folder, ".safetensors").empty();
  if (ggufs.size() == 1 && !has_safetensors)
    return {ModelFiles::gguf, ggufs.front(), std::move(name)};
  if (has_file(folder, "config.json") || has_file(folder, "tokenizer.json") ||
      has_file(folder, "tokenizer.model")) {
    return {ModelFiles::hf_folder, folder, std::move(name)};
  }
  if (ggufs.size() > 1) {
    std::vector<std::string> names;
    for (const fs::path& path : ggufs) names.push_back(path.filename().string());
    fail("{}: holds several GGUF files, name one of them: {}",
         folder.string(),
         fmt::join(names, ", "));
  }
  fail("{}: wanted a folder with config.json, a tokenizer or one .gguf file; found none of them",
       folder.string());
}

// "org/name" or "name", of the letters the hub allows.
bool is_hub_name(std::string_view model) {
  return !model.empty() && model.front() != '/' && model.back() != '/' &&
         std::ranges::count(model, '/') <= 1 && model.find("..") == std::string_view::npos &&
         std::ranges::all_of(model, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ||
                  c == '/';
         });
}

std::vector<fs::path> hub_caches() {
  std::vector<fs::path> caches;
  const auto add = [&](const char* variable, const char* below) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') caches.push_back(fs::path(value) / below);
  };
  add("HF_HUB_CACHE", "");
  add("HF_HOME", "hub");
  add("XDG_CACHE_HOME", "huggingface/hub");
  add("HOME", ".cache/huggingface/hub");
  return caches;
}

// The snapshot that refs/main names, else the only one; an empty path where there is none.
fs::path snapshot_of(const fs::path& repository) {
  const fs::path snapshots = repository / "snapshots";
  if (!fs::is_directory(snapshots)) return {};
  std::ifstream ref(repository / "refs" / "main");
  if (std::string commit; ref >> commit) {
    const bool plain = std::ranges::all_of(
        commit, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; });
    if (!plain)
      fail("{}: wanted a commit, found '{}'", (repository / "refs/main").string(), commit);
    if (!fs::is_directory(snapshots / commit)) {
      fail("{}: refs/main names the snapshot {}, which is not there (download incomplete?)",
           repository.string(),
           commit);
    }
    return snapshots / commit;
  }
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(snapshots)) found.push_back(entry.path());
  if (found.size() > 1) {
    fail("{}: holds {} snapshots and no refs/main; name one of them by its path",
         repository.string(),
         found.size());
  }
  return found.empty() ? fs::path() : found.front();
}

}  // namespace

ModelPath find_model(std::string_view model) {
  const fs::path path(model);
  if (fs::is_directory(path)) {
    const fs::path plain = fs::absolute(path).lexically_normal();
    return in_folder(path,
                     (plain.has_filename() ? plain : plain.parent_path()).filename().string());
  }
  if (fs::is_regular_file(path)) {
    if (path.extension() == ".gguf") return {ModelFiles::gguf, path, path.stem().string()};
    if (path.extension() == ".json") {
      const std::string folder =
          fs::absolute(path).lexically_normal().parent_path().filename().string();
      return {ModelFiles::config_json, path, folder.empty() ? path.stem().string() : folder};
    }
    fail("{}: wanted a model folder, a .gguf file or a config.json; found another file{}",
         path.string(),
         path.extension() == ".safetensors" ? " (name its folder instead)" : "");
  }

  std::string looked_at = path.string();
  if (is_hub_name(model)) {
    std::string folder = "models--" + std::string(model);
    if (const auto slash = folder.find('/'); slash != std::string::npos)
      folder.replace(slash, 1, "--");
    for (const fs::path& cache : hub_caches()) {
      looked_at += ", " + (cache / folder).string();
      const fs::path snapshot = snapshot_of(cache / folder);
      if (!snapshot.empty()) return in_folder(snapshot, std::string(model));
    }
  }
  fail("model '{}' not found; looked at {}. Nothing is downloaded: fetch it first",
       model,
       looked_at);
}

}  // namespace keel
