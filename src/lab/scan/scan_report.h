// A scan as a table, as JSON and as a page with charts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lab/scan/verdict.h"

namespace keel {

std::string to_table(const Scan& scan, const ScanVerdict& verdict);
nlohmann::ordered_json as_json(const Scan& scan, const ScanVerdict& verdict);
std::string to_html(const Scan& scan, const ScanVerdict& verdict);

}  // namespace keel
