#include "kernels/gemm/gemm_choice.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda.h"

namespace keel::cuda {
namespace {

constexpr int kVersion = 7;  // of the kernels' plans: a change makes old files' lines foreign

std::string text(const GemmChoice& choice) {
  std::string out = fmt::format("{} {} {:d} {:d} {}", choice.skinny.warpgroups, choice.skinny.splits, static_cast<int>(choice.skinny.share),
                                choice.skinny.streams_x, choice.launch_tokens);
  for (const std::uint64_t word : choice.algorithm.data) out += fmt::format(" {:x}", word);
  return out;
}

std::optional<GemmChoice> parse(const std::string& text) {
  GemmChoice choice{.unchecked = true};
  std::istringstream in(text);
  int share = 0;
  in >> choice.skinny.warpgroups >> choice.skinny.splits >> share >> choice.skinny.streams_x >> choice.launch_tokens >> std::hex;
  choice.skinny.share = static_cast<SkinnyShare>(share);
  for (std::uint64_t& word : choice.algorithm.data) in >> word;
  const SkinnyPlan& plan = choice.skinny;
  const bool is_library = plan.warpgroups == 0;
  const auto any_of = [](std::int64_t value, std::initializer_list<std::int64_t> allowed) { return std::find(allowed.begin(), allowed.end(), value) != allowed.end(); };
  if (!in || !any_of(plan.warpgroups, {0, 1, 2, 3}) || !any_of(share, {0, 1, 2})) return std::nullopt;
  if (!is_library && (!any_of(plan.splits, {1, 2, 4, 8}) || !any_of(choice.launch_tokens, {8, 16, 32, 64}))) return std::nullopt;
  return choice;
}

}  // namespace

std::string default_gemm_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/keel/gemm";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/keel/gemm" : std::string();
}

std::string choice_key(const GemmArgs& args) {
  const GemmWeights& w = args.weights;
  return fmt::format("{}{}{} {} {}x{}", name(w.dtype), w.packed != nullptr ? " awq" : "", w.bias != nullptr ? " bias" : "",
                     args.gate_up != nullptr ? "gated" : args.out_type == DType::f32 ? "f32" : "same", w.rows, w.columns) +
         fmt::format(" {}", std::bit_ceil(static_cast<std::uint64_t>(args.tokens)));
}

GemmChoices::GemmChoices(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  const FoundDevice device = find_device();
  device_ = fmt::format("{}|{}|{}|{}|", device.info.name, device.info.driver, cublasLtGetVersion(), kVersion);
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(device_)) continue;
    const std::size_t end = line.find('|', device_.size());
    const auto choice = end == std::string::npos ? std::nullopt : parse(line.substr(end + 1));
    if (choice) {
      choices_[line.substr(device_.size(), end - device_.size())] = *choice;
    } else {
      log_warning("{}: not a choice of a kernel, measured again: {}", path_, line);
    }
  }
}

const GemmChoice* GemmChoices::find(const std::string& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? nullptr : &found->second;
}

void GemmChoices::add(const std::string& key, const GemmChoice& choice) {
  set(key, choice);
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  std::ofstream file(path_, std::ios::app);
  file << device_ + key + '|' + text(choice) + '\n';
}

}  // namespace keel::cuda
