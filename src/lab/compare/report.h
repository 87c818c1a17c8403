// A comparison as text, as JSON and as a page. All follow from the plan and the journal alone.
#pragma once

#include <string>

#include "lab/compare/verdict.h"

namespace keel {

std::string to_text(const ComparePlan& plan, const CompareResult& result);
PlanJson as_json(const ComparePlan& plan, const CompareResult& result, const std::vector<CompareBlock>& blocks);
std::string to_html(const ComparePlan& plan, const CompareResult& result, const std::vector<CompareBlock>& blocks);

}  // namespace keel
