// The production gate: what ran is what was asked for, byte by byte and call by call, and the checks that say so notice each fault
// that is made on purpose in the same path.
#pragma once

#include <nlohmann/json.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/quality/cached_decode.h"

namespace keel {

struct ProductionItem {
  std::string name;       // "writer", "fault: value pages swapped", …
  bool applies = true;    // some faults cannot be made in some formats; `detail` says why
  bool passed = false;    // a fault's: it was detected
  nlohmann::json detail;  // what was counted, or what was wrong
};

struct FaultPlan;

class ProductionGate {
 public:
  // `tokens`: at least kProductionTokens of the model's vocabulary, the text of the scenario. All must outlive it. `broken` names a
  // fault of fault_plans() that the path really has, to see the gate fail; throws Error where there is none of that name.
  ProductionGate(Device device, const LoadedModel& model, const DecodeArm& candidate, KvFormat control, std::span<const std::int32_t> tokens, WorkerPool& workers,
                 const std::string& broken = "");
  ~ProductionGate();

  // In the order in which they run: the checks, then the faults.
  const std::vector<std::string>& items() const { return items_; }
  ProductionItem run(const std::string& item);

 private:
  struct Scene;
  ProductionItem effective();
  ProductionItem storage(bool aliased);
  ProductionItem writer(bool saturates);
  ProductionItem attention();
  ProductionItem routes();
  ProductionItem graphs(bool stale);
  ProductionItem fault(const FaultPlan& plan);
  Scene& scene(bool graphs, bool watched);

  Device device_;
  const LoadedModel& model_;
  const DecodeArm& candidate_;
  KvFormat control_;
  std::span<const std::int32_t> tokens_;
  WorkerPool& workers_;
  bool decode_is_plain_ = false, native_prefill_ = true;
  const FaultPlan* broken_ = nullptr;
  std::vector<std::string> items_;
  std::unique_ptr<Scene> eager_, replayed_;
};

inline constexpr std::int64_t kProductionTokens = 600;
inline constexpr std::int64_t kLeastFaults = 12;  // that must apply and be detected

}  // namespace keel
