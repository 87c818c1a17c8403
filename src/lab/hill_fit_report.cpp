#include "lab/hill_fit_report.h"

#include <fmt/format.h>

namespace keel {
namespace {

std::string text_of(const std::optional<HillInterval>& range) {
  if (!range) return "no interval";
  return fmt::format("[{}{:.6g}, {}{:.6g}]", range->low_open ? "≤" : "", range->low, range->high_open ? "≥" : "", range->high);
}

nlohmann::ordered_json json_of(double value, const std::optional<HillInterval>& range) {
  nlohmann::ordered_json json{{"value", value}, {"interval", nullptr}};
  if (range) json["interval"] = {{"low", range->low}, {"high", range->high}, {"low_open", range->low_open}, {"high_open", range->high_open}};
  return json;
}

}  // namespace

std::string to_table(std::span<const HillFit> fits, const FitQuestions& questions) {
  std::string text = "S(B) = Smax · B^γ / (B½^γ + B^γ), least squares in tokens/s, one fit a context; 95 % profile intervals.\n"
                     "A description of these measurements: it names no cause, and nothing outside them is measured.\n";
  for (const HillFit& fit : fits) {
    const auto line = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
      text += fmt::format(format, std::forward<Args>(args)...) + '\n';
    };
    const double last = fit.points.back().batch;
    line("\ncontext {:.6g}: {} points at {} batches, {:.6g} to {:.6g}", fit.context, fit.points.size(), fit.batches, fit.points.front().batch, last);
    line("  Smax {:>12.6g} tokens/s   {}", fit.hill.ceiling, text_of(fit.ceiling));
    line("  B½   {:>12.6g}            {}", fit.hill.half_batch, text_of(fit.half_batch));
    line("  γ    {:>12.6g}            {}", fit.hill.gamma, text_of(fit.gamma));
    line("  R²   {:>12.6f}            residual deviation {:.4g} tokens/s", fit.r_squared, fit.residual_deviation);
    for (const std::string& flag : fit.flags) line("  ! {}", flag);
    line("  {:>10} {:>14} {:>14} {:>12} {:>10} {:>10}", "batch", "measured", "fitted", "residual", "share", "elasticity");
    for (std::size_t i = 0; i < fit.points.size(); ++i) {
      const double batch = fit.points[i].batch;
      line("  {:>10.6g} {:>14.6g} {:>14.6g} {:>12.4g} {:>9.1f}% {:>10.3f}", batch, fit.points[i].tokens_per_s, fit.hill.at(batch), fit.residuals[i],
           100 * fit.hill.share(batch), fit.hill.elasticity(batch));
    }
    for (const double share : questions.shares) line("  {:.0f} % of the ceiling at batch {:.5g}", 100 * share, fit.hill.batch_for_share(share));
    line("  {:.4g} × the batch of {:.6g}: throughput × {:.6f}, time per token × {:.6f}, by the fitted curve", questions.capacity, last,
         fit.hill.throughput_gain(last, questions.capacity), fit.hill.token_time_gain(last, questions.capacity));
  }
  return text;
}

nlohmann::ordered_json as_json(std::span<const HillFit> fits, const FitQuestions& questions) {
  nlohmann::ordered_json json{{"record", "keel fit"}, {"law", "Smax*B^gamma/(half_batch^gamma+B^gamma)"}, {"confidence", kConfidence}, {"fits", nlohmann::ordered_json::array()}};
  for (const HillFit& fit : fits) {
    nlohmann::ordered_json one{{"context", fit.context}, {"batches", fit.batches}, {"ceiling", json_of(fit.hill.ceiling, fit.ceiling)},
                               {"half_batch", json_of(fit.hill.half_batch, fit.half_batch)}, {"gamma", json_of(fit.hill.gamma, fit.gamma)},
                               {"r_squared", fit.r_squared}, {"residual_deviation", fit.residual_deviation}, {"flags", fit.flags}};
    for (std::size_t i = 0; i < fit.points.size(); ++i) {
      const double batch = fit.points[i].batch;
      one["points"].push_back({{"batch", batch}, {"tokens_per_s", fit.points[i].tokens_per_s}, {"fitted", fit.hill.at(batch)},
                               {"residual", fit.residuals[i]}, {"share", fit.hill.share(batch)}, {"elasticity", fit.hill.elasticity(batch)}});
    }
    for (const double share : questions.shares) one["batch_for_share"].push_back({{"share", share}, {"batch", fit.hill.batch_for_share(share)}});
    const double last = fit.points.back().batch;
    one["capacity"] = {{"factor", questions.capacity}, {"from_batch", last}, {"throughput_x", fit.hill.throughput_gain(last, questions.capacity)},
                       {"token_time_x", fit.hill.token_time_gain(last, questions.capacity)}};
    json["fits"].push_back(std::move(one));
  }
  return json;
}

}  // namespace keel
