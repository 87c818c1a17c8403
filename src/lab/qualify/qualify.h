// keel qualify: the frozen plan, the gates in their order, the journal that a killed run goes on from, the record and its report.
#pragma once

#include <filesystem>
#include <string>

#include "lab/qualify/panel.h"
#include "lab/qualify/verdict.h"
#include "model/weights.h"

namespace keel {

struct QualifyOptions {
  ModelPath model;
  LoadOptions load;
  std::string device = "auto";
  std::string control = "k16v16", candidate;
  std::filesystem::path kv_scales;
  int threads = 0;
  PanelOptions panel;
  std::filesystem::path output;  // the record; empty = in qualification_folder(), named after model, format, device and plan
  std::string stop_after;        // a gate's name: the gates behind it are left for a later run
  std::string broken;            // a fault that production's path really has (production.h); part of the plan
  bool freeze_only = false;      // write the plan and score nothing
  std::string version, commit;   // of this program
};

struct Qualification {
  Verdict verdict = Verdict::not_reached;
  std::vector<GateResult> gates;
  std::string plan_sha256;
  std::filesystem::path record, report, plan;  // record and report are empty where they were not written
  bool was_there = false;                      // the record of an earlier run, which is never repeated or replaced
};

// Where records lie unless another place is given: $XDG_DATA_HOME/keel/qualifications or ~/.local/share/keel/qualifications; empty
// where neither variable is set.
std::filesystem::path qualification_folder();

Qualification qualify(const QualifyOptions& options);

}  // namespace keel
