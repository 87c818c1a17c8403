// A byte plan as a table for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lab/byte_plan.h"

namespace keel {

std::string to_table(const BytePlan& plan);
nlohmann::ordered_json as_json(const BytePlan& plan);

}  // namespace keel
