#include "lab/qualify/model_digest.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text_file.h"
#include "files/mapped_file.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{16} << 20;
constexpr std::size_t kRememberedBytes = std::size_t{64} << 20;  // smaller files are read again in no time

fs::path memory_file() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "keel/digests.json";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / ".cache/keel/digests.json" : fs::path();
}

nlohmann::json remembered() {
  std::ifstream in(memory_file());
  nlohmann::json known = nlohmann::json::parse(in, nullptr, false);
  return known.is_object() ? known : nlohmann::json::object();
}

void remember(const std::string& path, const nlohmann::json& entry) {
  const fs::path file = memory_file();
  if (file.empty()) return;
  nlohmann::json known = remembered();
  known[path] = entry;
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  try {
    write_text_file(file, known.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (const Error&) {  // it costs reading the model again
  }
}

std::string file_digest(const fs::path& path, WorkerPool& workers) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) fail("{}: cannot be read", path.string());
  const std::string key = fs::canonical(path).string();
  const nlohmann::json known{{"size", status.st_size}, {"changed_s", status.st_mtim.tv_sec}, {"changed_ns", status.st_mtim.tv_nsec}};
  const bool large = static_cast<std::size_t>(status.st_size) >= kRememberedBytes;
  if (large) {
    const nlohmann::json all = remembered();
    if (all.contains(key) && all[key].is_object() && all[key].contains("sha256") && all[key]["sha256"].is_string()) {
      nlohmann::json old = all[key];
      const std::string digest = old["sha256"];
      old.erase("sha256");
      if (old == known) return digest;
    }
  }
  std::vector<Digest> blocks;
  if (status.st_size > 0) {
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    blocks.resize((bytes.size() + kBlockBytes - 1) / kBlockBytes);
    workers.parallel_for(static_cast<std::int64_t>(blocks.size()), [&](std::int64_t block, int) {
      const std::size_t begin = static_cast<std::size_t>(block) * kBlockBytes;
      blocks[static_cast<std::size_t>(block)] = sha256(bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin)));
    });
  }
  const std::string digest = hex(sha256(std::as_bytes(std::span(blocks))));
  if (large) {
    nlohmann::json entry = known;
    entry["sha256"] = digest;
    remember(key, entry);
  }
  return digest;
}

std::string digest_of(std::vector<fs::path> files, const std::string& more, WorkerPool& workers) {
  std::sort(files.begin(), files.end());
  std::string lines;
  for (const fs::path& file : files) {
    lines += fmt::format("{} {} {}\n", file.filename().string(), fs::file_size(file), file_digest(file, workers));
  }
  return hex(sha256(lines + more));
}

}  // namespace

std::string model_digest(const ModelPath& path, const LoadOptions& options, WorkerPool& workers) {
  const bool is_dummy = options.format == LoadFormat::dummy;
  std::string changes = is_dummy ? fmt::format("dummy seed {} scale {}\n", options.dummy_seed, options.dummy_scale) : std::string();
  for (const auto& [channel, offset] : options.key_bias_offsets) changes += fmt::format("key bias of channel {} {:+}\n", channel, offset);
  if (path.kind == ModelFiles::gguf) return digest_of({path.path}, changes, workers);
  if (path.kind == ModelFiles::config_json) return digest_of({path.path}, changes, workers);
  std::vector<fs::path> files;
  if (fs::exists(path.path / "config.json")) files.push_back(path.path / "config.json");
  if (!is_dummy) {
    for (const auto& entry : fs::directory_iterator(path.path)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
  }
  return digest_of(std::move(files), changes, workers);
}

std::string tokenizer_digest(const ModelPath& path, WorkerPool& workers) {
  if (path.kind == ModelFiles::gguf) return digest_of({path.path}, "", workers);
  if (path.kind == ModelFiles::config_json) return {};
  std::vector<fs::path> files;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    if (fs::exists(path.path / name)) files.push_back(path.path / name);
  }
  return files.empty() ? std::string() : digest_of(std::move(files), "", workers);
}

}  // namespace keel
