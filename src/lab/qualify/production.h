// The production gate: what ran is what was asked for, byte by byte and call by call, and the checks that say so notice each fault
// that is made on purpose in the same path.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/quality/cached_decode.h"

namespace keel {

struct ProductionFinding {
  bool applies = true;    // some faults cannot be made in some formats; `detail` says why
  bool passed = false;    // a fault's: it was detected
  nlohmann::json detail;  // what was counted, or what was wrong
};

// "writer, every 16-bit input", or "fault: value pages swapped"
struct ProductionCheck {
  std::string name;
  std::function<ProductionFinding()> run;
};

struct FaultPlan;

class ProductionGate {
 public:
  // `tokens`: at least kProductionTokens of the model's vocabulary, the text of the scenario. All must outlive it. `broken` names a
  // fault of fault_plans() that the path really has, to see the gate fail; throws Error where there is none of that name.
  ProductionGate(Device device, const LoadedModel& model, const DecodeArm& candidate, KvFormat control, std::span<const std::int32_t> tokens, WorkerPool& workers,
                 const std::string& broken = "");
  ~ProductionGate();
  ProductionGate(const ProductionGate&) = delete;

  // The checks, then the faults. Each stands alone: they run in any order and any number of times.
  const std::vector<ProductionCheck>& checks() const { return checks_; }

 private:
  struct Scene;
  ProductionFinding effective();
  ProductionFinding storage(bool aliased);
  ProductionFinding writer(bool saturates);
  ProductionFinding attention();
  ProductionFinding routes();
  ProductionFinding graphs(bool stale);
  ProductionFinding other_format();
  ProductionFinding fault(const FaultPlan& plan);
  Scene& scene(bool graphs, bool watched);

  Device device_;
  const LoadedModel& model_;
  const DecodeArm& candidate_;
  KvFormat control_;
  std::span<const std::int32_t> tokens_;
  WorkerPool& workers_;
  bool decode_is_plain_ = false, native_prefill_ = true;
  const FaultPlan* broken_ = nullptr;
  std::vector<ProductionCheck> checks_;
  std::unique_ptr<Scene> eager_, replayed_;
};

inline constexpr std::int64_t kProductionTokens = 600;
inline constexpr std::int64_t kLeastFaults = 12;  // that must apply and be detected

}  // namespace keel
