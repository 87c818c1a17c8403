// Which kernel does a product: measured once, kept in memory and in a file.
#pragma once

#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>

#include "kernels/gemm/skinny_gemm.h"

namespace keel::cuda {

// `skinny` where it has warpgroups, `launch_tokens` rows of x at a time; else cuBLASLt's algorithm (AWQ: on the expanded weights).
struct GemmChoice {
  SkinnyPlan skinny;
  std::int64_t launch_tokens = 0;
  cublasLtMatmulAlgo_t algorithm = {};
  bool unchecked = false;  // read from the file and not yet seen to be one of its product's choices
};

std::string choice_key(const GemmArgs& args);  // the shape, with tokens rounded up to the next power of two

class GemmChoices {
 public:
  explicit GemmChoices(std::string path);  // empty: no file
  const GemmChoice* find(const std::string& key) const;
  void confirm(const std::string& key) { choices_.at(key).unchecked = false; }
  void set(const std::string& key, const GemmChoice& choice) { choices_[key] = choice; }
  void add(const std::string& key, const GemmChoice& choice);  // and to the file; one that cannot be written costs a measurement next time

 private:
  std::string path_, device_;  // device_: GPU, driver and library, the beginning of a line
  std::map<std::string, GemmChoice> choices_;
};

}  // namespace keel::cuda
