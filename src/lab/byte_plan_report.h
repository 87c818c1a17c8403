// A byte plan as a table for people, as JSON and as a page of charts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lab/byte_plan.h"

namespace keel {

std::string to_table(const BytePlan& plan);
nlohmann::ordered_json as_json(const BytePlan& plan);
std::string to_html(const BytePlan& plan);

}  // namespace keel
