// What each gate computes: item by item into the journal, so that a killed run goes on, and nothing that is there already. How it is
// then judged is verdict.h's.
#pragma once

#include <memory>

#include "lab/qualify/journal.h"
#include "lab/qualify/panel.h"
#include "lab/qualify/plan.h"
#include "lab/quality/cached_decode.h"
#include "text/tokenizer.h"

namespace keel {

// Who is asked what: made once, for one gate after another.
struct Trial {
  std::shared_ptr<const Tokenizer> tokenizer;
  LoadedModel model;
  Subject subject;
  KvScales control_scales;          // 1 where the control has 16 bits
  std::filesystem::path kv_scales;  // the candidate's, as an engine reads them; empty = unit
  Panel panel;
  std::string broken;               // a fault that production's path really has (production.h)

  DecodeArm decode_arm(const ArmPlan& arm) const;
};

// All throw Error where the engine fails: what it was computing is then asked again by the next run.
GateResult run_production(const Trial& trial, WorkerPool& workers, Journal& journal);
GateResult run_nll(const Trial& trial, WorkerPool& workers, Journal& journal);
GateResult run_answers(const Trial& trial, const AnswerPanel& panel, WorkerPool& workers, Journal& journal);

// What the gate took in all runs so far.
double seconds_of(const Journal& journal, const std::string& gate);

}  // namespace keel
