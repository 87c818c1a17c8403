// Fits as a table, as JSON, as a plot and as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "lab/hill_fit.h"

namespace keel {

struct FitQuestions {
  std::vector<double> shares{0.5, 0.8, 0.9, 0.95};  // batch for a share of the ceiling
  double capacity = 4.0 / 3;                        // times the batch
};

std::string to_table(std::span<const HillFit> fits, const FitQuestions& questions);
nlohmann::ordered_json as_json(std::span<const HillFit> fits, const FitQuestions& questions);
// Measured points with the fitted curves and their bands above, residuals below, both over the batch (logarithmic).
std::string to_svg(std::span<const HillFit> fits, const std::string& title);
// One file with the same charts, intervals of the parameters, what a larger batch buys, and every number of the table.
std::string to_html(std::span<const HillFit> fits, const FitQuestions& questions, const std::string& title);

}  // namespace keel
