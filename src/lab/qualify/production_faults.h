// The faults that the production gate makes in the path it judges. Each is one decode step of two sequences gone wrong: in what
// the executor is told, in what the pages hold when attention reads them, or in what attention reads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/qualify/attention_check.h"

namespace keel {

struct FaultScene {
  const ModelConfig& config;
  KvPool& pool;
  AttentionCheck& check;
  const std::vector<PageId>&table, &other_table;  // of the sequence that suffers, and of the other one
  std::int64_t position;                          // of its new token
  std::int64_t layer;                             // where faults of one layer are made
  std::vector<PageId> false_table;                // what the executor is told where that is the fault

  std::int64_t page() const { return table[static_cast<std::size_t>(position / pool.layout().geometry().page_size)]; }
  std::int64_t slot() const { return position % pool.layout().geometry().page_size; }
};

struct FaultPlan {
  std::string name;
  std::function<std::string(const FaultScene&)> refusal;         // why it cannot be made here; empty = it can
  std::function<void(FaultScene&, StepRows&)> in_step = {};      // rows as the executor gets them
  std::function<void(FaultScene&, AttentionCall&)> at_layer = {};  // after the write, before attention
};
const std::vector<FaultPlan>& fault_plans();
const FaultPlan& find_fault(const std::string& name);  // throws Error naming those that there are

// Bytes of a token over all layers, by the formula and not by the layout.
std::int64_t formula_bytes(KvFormat format, const KvGeometry& geometry);

}  // namespace keel
