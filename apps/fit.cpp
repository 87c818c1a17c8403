// keel fit FILE: the saturation law fitted to measured decode throughput.
#include <fmt/format.h>

#include <filesystem>

#include "base/option_error.h"
#include "base/text_file.h"
#include "lab/hill_fit_report.h"
#include "options.h"

namespace keel {
namespace {

struct FitFlags {
  std::string file, svg, html;
  FitQuestions questions;
  bool json = false;
};

void fit(const FitFlags& flags) {
  std::vector<HillFit> fits;
  try {
    const bool json_lines = flags.file.ends_with(".jsonl") || flags.file.ends_with(".json");
    fits = fit_contexts(read_sweep(read_text_file(flags.file), flags.file, json_lines));
  } catch (const Error& error) {  // the file is all that this command reads
    throw OptionError(error.what());
  }
  const std::string title = "Decode throughput over the batch: " + std::filesystem::path(flags.file).filename().string();
  if (!flags.svg.empty()) write_text_file(flags.svg, to_svg(fits, title));
  if (!flags.html.empty()) write_text_file(flags.html, to_html(fits, flags.questions, title));
  if (flags.json) {
    fmt::print("{}\n", as_json(fits, flags.questions).dump(2));
  } else {
    fmt::print("{}", to_table(fits, flags.questions));
  }
}

}  // namespace

void add_fit(CLI::App& app) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* command = app.add_subcommand("fit", "Fit the saturation law to measured (context, batch, tokens/s)");
  command->add_option("file", flags->file, "CSV with a header, or .jsonl: context, batch, tokens_per_s")->required();
  command->add_option("--svg", flags->svg, "File for a plot of points, curves and residuals");
  command->add_option("--html", flags->html, "File for a page of charts and numbers");
  command->add_option("--shares", flags->questions.shares, "Shares of the ceiling to name batches for")->delimiter(',')->check(number_between(0.001, 0.999))->capture_default_str();
  command->add_option("--capacity", flags->questions.capacity, "What so many times the largest batch buys")->check(number_between(1e-3, 1e3))->capture_default_str();
  command->add_flag("--json", flags->json, "As JSON");
  command->callback([flags] { fit(*flags); });
}

}  // namespace keel
