// The journal of a comparison: a line a finished block, appended, never rewritten.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lab/compare/plan.h"
#include "lab/line_journal.h"

namespace keel {

struct ArmRun {
  std::string arm;
  std::string error;                   // not empty: the run failed, and has no figure in any result
  std::map<ArmMetric, double> figures;  // those that this kind of arm has
  PlanJson ran;                        // what the engine or the server says it is; the same in every block
  PlanJson details;                    // times, counts, command: kept, not judged
};

struct CompareBlock {
  std::int64_t number = 0;  // 1 …; pilots from 1 in a journal of their own
  std::vector<ArmRun> runs;  // in the order they ran
};

// Measures one arm once. What fails is said in the run's `error`.
using ArmRunner = std::function<ArmRun(const CompareArm& arm, std::int64_t block)>;

class BlockJournal {
 public:
  // Goes on with what is there. Throws Error as LineJournal does, OptionError where the file belongs to another plan.
  BlockJournal(const std::filesystem::path& path, const ComparePlan& plan, const PlanJson& head);

  const std::vector<CompareBlock>& blocks() const { return blocks_; }
  void append(CompareBlock block);

 private:
  void write(const PlanJson& line);

  LineJournal lines_;
  std::string hash_;
  std::vector<CompareBlock> blocks_;
};

// Runs the blocks after the journal's last, each arm in the plan's order. A run whose figures are no measurements, or
// whose `ran` is not what it was in an earlier block, fails. `on_run` is told before each run.
void run_blocks(const ComparePlan& plan, BlockJournal& journal, std::int64_t blocks, const ArmRunner& runner,
                const std::function<void(std::int64_t block, const std::string& arm)>& on_run = {});

}  // namespace keel
