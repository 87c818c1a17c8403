#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/option_error.h"
#include "lab/hill_fit.h"

namespace keel {
namespace {

constexpr const char* kColumns[] = {"context", "batch", "tokens_per_s"};

int column_named(std::string_view name) {
  if (name == "tokens/s") return 2;  // as others write it
  for (const int column : {0, 1, 2}) {
    if (name == kColumns[column]) return column;
  }
  return -1;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\"";
  const std::size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos ? std::string_view{} : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string_view> split(std::string_view line, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0;;) {
    const std::size_t end = line.find(at, from);
    parts.push_back(trimmed(line.substr(from, end == std::string_view::npos ? end : end - from)));
    if (end == std::string_view::npos) return parts;
    from = end + 1;
  }
}

// Of `values`, in the order of kColumns.
SweepPoint point_of(const double (&values)[3], const std::string& where) {
  for (const int column : {0, 1, 2}) {
    if (!(values[column] >= kLeastFigure && values[column] <= kMostFigure)) {
      refuse_option("{}: {}: wanted a number from {:g} to {:g}, found {}", where, kColumns[column], kLeastFigure, kMostFigure, values[column]);
    }
  }
  return {values[0], values[1], values[2]};
}

class CsvReader {
 public:
  std::optional<SweepPoint> line(std::string_view text, const std::string& where) {
    const std::vector<std::string_view> cells = split(text, ',');
    if (columns_.empty()) return header(cells, where), std::nullopt;
    if (cells.size() != columns_.size()) refuse_option("{}: wanted {} columns as in the header, found {}", where, columns_.size(), cells.size());
    double values[3] = {};
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (columns_[i] < 0) continue;
      double& value = values[columns_[i]];
      const auto [end, error] = std::from_chars(cells[i].data(), cells[i].data() + cells[i].size(), value);
      if (error != std::errc() || end != cells[i].data() + cells[i].size()) refuse_option("{}: {}: wanted a number, found '{}'", where, kColumns[columns_[i]], shortened(std::string(cells[i]), 40));
    }
    return point_of(values, where);
  }

 private:
  void header(const std::vector<std::string_view>& cells, const std::string& where) {
    for (const std::string_view cell : cells) columns_.push_back(column_named(cell));
    for (const int column : {0, 1, 2}) {
      if (std::ranges::count(columns_, column) != 1) {
        refuse_option("{}: the header must name context, batch and tokens_per_s once each, found '{}'", where, shortened(fmt::format("{}", fmt::join(cells, ",")), 80));
      }
    }
  }
  std::vector<int> columns_;
};

SweepPoint json_point(std::string_view text, const std::string& where) {
  if (const auto problem = json_problem(text)) refuse_option("{}: {}", where, *problem);
  const nlohmann::json json = nlohmann::json::parse(text);
  if (!json.is_object()) refuse_option("{}: wanted an object with context, batch and tokens_per_s", where);
  double values[3] = {};
  bool given[3] = {};
  for (const auto& [key, value] : json.items()) {
    const int column = column_named(key);
    if (column < 0) continue;
    if (!value.is_number() || given[column]) refuse_option("{}: {}: wanted one number, found {}", where, key, shortened(value.dump(), 40));
    values[column] = value.get<double>(), given[column] = true;
  }
  for (const int column : {0, 1, 2}) {
    if (!given[column]) refuse_option("{}: {} is missing", where, kColumns[column]);
  }
  return point_of(values, where);
}

// A number of what `keel fit --json` prints.
double number_of(const nlohmann::json& json, const std::string& label, const char* what, double least, double most) {
  if (!json.is_number() || !(json.get<double>() >= least && json.get<double>() <= most)) {
    refuse_option("{}: {}: wanted a number from {:.6g} to {:.6g}, found {}", label, what, least, most, shortened(json.dump(), 40));
  }
  return json;
}

}  // namespace

MeasuredCurve read_curve(const std::string& text, const std::string& label, double context) {
  if (const auto problem = json_problem(text)) refuse_option("{}: {}", label, *problem);
  const auto json = nlohmann::json::parse(text);
  std::string others;
  try {
    if (json.at("record") != "keel fit") refuse_option("{}: wanted what `keel fit --json` prints", label);
    for (const auto& fit : json.at("fits")) {
      const double found = number_of(fit.at("context"), label, "context", kLeastFigure, kMostFigure);
      if (found != context) {
        others += fmt::format("{}{}", others.empty() ? "" : ", ", found);
        continue;
      }
      // Ends of the search, and a little for how they were printed.
      const auto parameter = [&](const char* name, double least, double most) { return number_of(fit.at(name).at("value"), label, name, least * 0.999, most * 1.001); };
      MeasuredCurve curve{.hill = {parameter("ceiling", kLeastCeiling * kLeastFigure, kMostCeiling * kMostFigure), parameter("half_batch", kLeastHalf * kLeastFigure, kMostHalf * kMostFigure),
                                   parameter("gamma", kLeastGamma, kMostGamma)},
                          .context = context, .largest_batch = 0, .flags = fit.at("flags")};
      for (const auto& point : fit.at("points")) curve.largest_batch = std::max(curve.largest_batch, number_of(point.at("batch"), label, "batch", kLeastFigure, kMostFigure));
      if (curve.largest_batch == 0) refuse_option("{}: the fit at context {} has no points", label, context);
      return curve;
    }
  } catch (const nlohmann::json::exception& error) {
    refuse_option("{}: wanted what `keel fit --json` prints: {}", label, error.what());
  }
  refuse_option("{}: no fit at context {}; there are fits at {}", label, context, others.empty() ? "none" : others);
}

std::vector<SweepPoint> read_sweep(const std::string& text, const std::string& label, bool json_lines) {
  std::vector<SweepPoint> points;
  CsvReader csv;
  std::int64_t number = 0;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    const std::string_view line = std::string_view(text).substr(from, end - from);
    from = end + 1, ++number;
    if (trimmed(line).empty() || trimmed(line).front() == '#') continue;
    const std::string where = fmt::format("{}:{}", label, number);
    const std::optional<SweepPoint> point = json_lines ? json_point(line, where) : csv.line(line, where);
    if (point) points.push_back(*point);
  }
  if (points.empty()) refuse_option("{}: no measured points: wanted lines of context, batch and tokens_per_s", label);
  return points;
}

}  // namespace keel
