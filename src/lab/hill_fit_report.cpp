#include "lab/hill_fit_report.h"

#include <algorithm>
#include <cmath>
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

std::string to_svg(std::span<const HillFit> fits, const std::string& title) {
  constexpr double kLeft = 80, kRight = 700, kTop = 50, kMiddle = 330, kGap = 380, kBottom = 480;
  constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};
  double least = fits.front().points.front().batch, most = least, high = 0, off = 1e-9;
  for (const HillFit& fit : fits) {
    for (std::size_t i = 0; i < fit.points.size(); ++i) {
      least = std::min(least, fit.points[i].batch), most = std::max(most, fit.points[i].batch);
      high = std::max({high, fit.points[i].tokens_per_s, fit.hill.at(most)});
      off = std::max(off, std::abs(fit.residuals[i]));
    }
  }
  const auto x = [&](double batch) { return kLeft + (kRight - kLeft) * (most > least ? std::log(batch / least) / std::log(most / least) : 0.5); };
  const auto y = [&](double speed) { return kMiddle - (kMiddle - kTop) * speed / (1.05 * high); };
  const auto residual_y = [&](double residual) { return (kGap + kBottom) / 2 - (kBottom - kGap) / 2 * residual / off; };
  std::string body;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    body += fmt::format(format, std::forward<Args>(args)...) + '\n';
  };
  std::string safe;
  for (const char c : title) safe += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '>' ? "&gt;" : std::string(1, c);
  add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 530" font-family="sans-serif" font-size="12">)");
  add(R"(<rect width="860" height="530" fill="white"/><text x="{}" y="24" font-size="15">{}</text>)", kLeft, safe);
  add(R"(<g stroke="#888" fill="none"><path d="M{0} {1}V{2}H{3}"/><path d="M{0} {4}V{5}M{0} {6}H{3}"/></g>)", kLeft, kTop, kMiddle, kRight, kGap, kBottom, (kGap + kBottom) / 2);
  for (int i = 0; i <= 4; ++i) {
    add(R"(<text x="{}" y="{:.1f}" text-anchor="end">{:.5g}</text>)", kLeft - 6, y(high * i / 4) + 4, high * i / 4);
  }
  for (const double sign : {-1.0, 0.0, 1.0}) add(R"(<text x="{}" y="{:.1f}" text-anchor="end">{:.3g}</text>)", kLeft - 6, residual_y(sign * off) + 4, sign * off);
  add(R"(<text x="{}" y="{}">output tokens/s (line: fitted)</text><text x="{}" y="{}">residual, tokens/s</text>)", kLeft, kTop - 8, kLeft, kGap - 8);
  add(R"(<text x="{}" y="{}">batch (logarithmic)</text>)", kRight - 120, kBottom + 36);
  std::vector<double> ticks;
  for (const HillFit& fit : fits) {
    for (const SweepPoint& point : fit.points) ticks.push_back(point.batch);
  }
  std::ranges::sort(ticks);
  double written = -100;
  for (const double tick : ticks) {
    if (x(tick) - written < 28) continue;
    written = x(tick);
    add(R"(<text x="{0:.1f}" y="{1}" text-anchor="middle">{2:.5g}</text><text x="{0:.1f}" y="{3}" text-anchor="middle">{2:.5g}</text>)", written, kMiddle + 18, tick, kBottom + 18);
  }
  for (std::size_t f = 0; f < fits.size(); ++f) {
    const HillFit& fit = fits[f];
    std::string path;
    for (int i = 0; i <= 200; ++i) {
      const double batch = least * std::pow(most / least, i / 200.0);
      path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(batch), y(fit.hill.at(batch)));
    }
    add(R"(<g stroke="{0}" fill="{0}"><path d="{1}" fill="none"/>)", kColours[f % std::size(kColours)], path);
    for (std::size_t i = 0; i < fit.points.size(); ++i) {
      const double at = x(fit.points[i].batch);
      add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"/><circle cx="{:.1f}" cy="{:.1f}" r="3"/>)", at, y(fit.points[i].tokens_per_s), at, residual_y(fit.residuals[i]));
    }
    add(R"(<text x="{}" y="{}" stroke="none">context {:.6g}{}</text></g>)", kRight + 12, kTop + 12 + 18 * static_cast<double>(f), fit.context, fit.flags.empty() ? "" : " (flagged)");
  }
  return body + "</svg>\n";
}

}  // namespace keel
