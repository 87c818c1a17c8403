// keel stats: the statistics of lab/stats.h for any numbers. Needs no model.
#include "lab/stats.h"

#include <charconv>
#include <cmath>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/option_error.h"
#include "base/text_file.h"
#include "options.h"

namespace keel {
namespace {

using Answer = nlohmann::ordered_json;

struct StatsFlags {
  bool json = false;
  std::vector<std::string> words, x, y, base, quant, spec, both;  // numbers as given
  std::string file;
  double confidence = kConfidence;
  std::int64_t losses = 0, wins = 0, of = 0, family = 0;
  std::optional<double> limit, loss_rate;
  BootstrapPlan plan;
};

// What a statistic refuses came from the command line.
template <class Work>
auto asked(Work work) {
  try {
    return work();
  } catch (const Error& error) {
    throw OptionError(error.what());
  }
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  constexpr std::string_view kBetween = " \t\r\n,;";
  for (std::size_t at; (at = text.find_first_not_of(kBetween)) != text.npos;) {
    text.remove_prefix(at);
    words.emplace_back(text.substr(0, text.find_first_of(kBetween)));
    text.remove_prefix(words.back().size());
  }
  return words;
}

double number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) {
    refuse_option("'{}' is no finite number", word);
  }
  return value;
}

std::vector<double> numbers(const std::vector<std::string>& given) {
  std::vector<double> values;
  for (const std::string& text : given) {
    for (const std::string& word : split(text)) values.push_back(number(word));
  }
  return values;
}

std::string text_of(const std::string& file) {
  return file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_text_file(file);
}

std::vector<double> values_of(const StatsFlags& flags) {
  if (flags.words.empty() == flags.file.empty()) refuse_option("wanted numbers, either as arguments or from --file");
  const std::vector<double> values = flags.file.empty() ? numbers(flags.words) : numbers({text_of(flags.file)});
  if (values.empty()) refuse_option("{} holds no numbers", flags.file.empty() ? "the command line" : flags.file);
  return values;
}

void print(const StatsFlags& flags, const Answer& answer, const std::string& text) {
  std::cout << (flags.json ? answer.dump() + "\n" : text);
}

std::string percent(double share) { return fmt::format("{:.6g} %", 100 * share); }
std::string_view passes(bool pass) { return pass ? "passes" : "fails"; }

void gross_loss(const StatsFlags& flags) {
  const double upper = asked([&] { return gross_loss_upper(flags.losses, flags.of, flags.confidence); });
  Answer answer{{"statistic", "gross-loss"},       {"method", "one-sided Clopper-Pearson"}, {"losses", flags.losses}, {"of", flags.of},
                {"confidence", flags.confidence}, {"upper", upper}};
  std::string text = fmt::format("{} losses of {}: upper limit {} (one-sided {} Clopper-Pearson)\n", flags.losses, flags.of,
                                 percent(upper), percent(flags.confidence));
  if (flags.limit) {
    const double limit = *flags.limit;
    const auto most = asked([&] { return most_losses_within(limit, flags.of, flags.confidence); });
    answer["limit"] = limit;
    answer["passes"] = upper <= limit;
    answer["most_losses"] = most ? Answer(*most) : Answer();
    text += fmt::format("limit {}: {}; ", percent(limit), passes(upper <= limit));
    if (most) {
      const double rate = gross_loss_upper(*most, flags.of, 0.2);
      answer["loss_rate_with_80_percent_chance"] = rate;
      text += fmt::format("at most {} losses pass, 4 times of 5 at a true loss rate of {}\n", *most, percent(rate));
    } else {
      text += fmt::format("{} items are too few for any loss count to pass\n", flags.of);
    }
  }
  if (flags.loss_rate) {
    const double chance = asked([&] { return chance_to_pass(*flags.limit, flags.of, *flags.loss_rate, flags.confidence); });
    answer["loss_rate"] = *flags.loss_rate;
    answer["chance_to_pass"] = chance;
    text += fmt::format("a true loss rate of {} passes with a chance of {}\n", percent(*flags.loss_rate), percent(chance));
  }
  print(flags, answer, text);
}

void sign(const StatsFlags& flags, bool counted) {
  SignTest test;
  if (counted) {
    if (!flags.words.empty() || !flags.file.empty()) refuse_option("wanted either ratios or --wins and --of");
    test = {.wins = flags.wins, .p = asked([&] { return sign_test_p(flags.wins, flags.of); })};
  } else {
    test = asked([&, ratios = values_of(flags)] { return sign_test(ratios); });
  }
  const std::int64_t of = counted ? flags.of : test.wins + test.ties + test.losses;
  Answer answer{{"statistic", "sign"}, {"method", "exact, one-sided, ties are no wins"}, {"wins", test.wins}, {"of", of}, {"p", test.p}};
  if (!counted) answer["ties"] = test.ties;
  print(flags, answer, fmt::format("{} wins of {} blocks{}: p = {:.6g} (exact, one-sided, ties are no wins)\n", test.wins, of,
                                   counted ? "" : fmt::format(" ({} ties)", test.ties), test.p));
}

void holm_table(const StatsFlags& flags) {
  const std::vector<double> p = values_of(flags);
  const std::int64_t family = flags.family == 0 ? std::ssize(p) : flags.family;
  const std::vector<double> adjusted = asked([&] { return holm(p, family); });
  std::string text = fmt::format("Holm over a planned family of {}, {} without a value at p = 1\n{:>14} {:>14}\n", family,
                                 family - std::ssize(p), "p", "adjusted");
  for (std::size_t i = 0; i < p.size(); ++i) text += fmt::format("{:>14.6g} {:>14.6g}\n", p[i], adjusted[i]);
  print(flags, {{"statistic", "holm"}, {"family", family}, {"p", p}, {"adjusted", adjusted}}, text);
}

void median_ci(const StatsFlags& flags) {
  const std::vector<double> values = values_of(flags);
  const Interval interval = asked([&] { return bootstrap_median_interval(values, flags.confidence); });
  const double middle = median(values);
  print(flags,
        {{"statistic", "median-ci"}, {"method", "exact bootstrap of the median, percentile, smallest atom that reaches the level"},
         {"values", values.size()}, {"confidence", flags.confidence}, {"median", middle}, {"lower", interval.lower}, {"upper", interval.upper}},
        fmt::format("median {:.9g}, {} interval [{:.9g}, {:.9g}] of {} values (exact bootstrap, unadjusted)\n", middle,
                    percent(flags.confidence), interval.lower, interval.upper, values.size()));
}

void bootstrap_mean(const StatsFlags& flags) {
  const std::vector<double> values = values_of(flags);
  if (flags.limit && !std::isfinite(*flags.limit)) refuse_option("--limit {}: wanted a finite number", *flags.limit);
  const MeanLimit limit = asked([&] { return bootstrap_mean_upper(values, flags.plan); });
  Answer answer{{"statistic", "bootstrap-mean"}, {"method", "one-sided percentile bootstrap, SplitMix64 counter generator"},
                {"values", values.size()},       {"confidence", flags.plan.confidence}, {"draws", flags.plan.draws}, {"seed", flags.plan.seed},
                {"mean", limit.mean},            {"upper", limit.upper}};
  std::string text = fmt::format("mean {:.9g} of {} values, upper limit {:.9g} (one-sided {} bootstrap, {} draws, seed {})\n", limit.mean,
                                 values.size(), limit.upper, percent(flags.plan.confidence), flags.plan.draws, flags.plan.seed);
  if (flags.limit) {
    const bool pass = limit.upper <= *flags.limit;
    answer["limit"] = *flags.limit;
    answer["passes"] = pass;
    text += fmt::format("limit {:.9g}: {}\n", *flags.limit, passes(pass));
  }
  print(flags, answer, text);
}

void rank_correlation(const StatsFlags& flags) {
  std::vector<double> x, y;
  if (flags.file.empty()) {
    x = numbers(flags.x);
    y = numbers(flags.y);
  } else {
    if (!flags.x.empty() || !flags.y.empty()) refuse_option("wanted numbers either from --x and --y or from --file");
    std::istringstream lines(text_of(flags.file));
    std::int64_t at = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::vector<double> pair = numbers({line});
      ++at;
      if (pair.empty()) continue;
      if (pair.size() != 2) refuse_option("{}, line {}: wanted two numbers, found {}", flags.file, at, pair.size());
      x.push_back(pair[0]);
      y.push_back(pair[1]);
    }
  }
  const double rho = asked([&] { return spearman(x, y); });
  print(flags, {{"statistic", "spearman"}, {"pairs", x.size()}, {"rho", rho}},
        fmt::format("Spearman's rho {:.9g} of {} pairs (equal values share their mean rank)\n", rho, x.size()));
}

std::string_view name(Composition composition) {
  switch (composition) {
    case Composition::sub_multiplicative: return "sub-multiplicative";
    case Composition::multiplicative: return "multiplicative";
    case Composition::super_multiplicative: return "super-multiplicative";
  }
  return "?";
}

void speculation(const StatsFlags& flags) {
  const std::vector<double> base = numbers(flags.base), quant = numbers(flags.quant), spec = numbers(flags.spec), both = numbers(flags.both);
  if (quant.size() != base.size() || spec.size() != base.size() || both.size() != base.size()) {
    refuse_option("wanted one throughput a block of each, found {} --base, {} --quant, {} --spec and {} --both", base.size(), quant.size(), spec.size(), both.size());
  }
  std::vector<SpeculationBlock> blocks;
  for (std::size_t i = 0; i < base.size(); ++i) blocks.push_back({base[i], quant[i], spec[i], both[i]});
  const SpeculationRatio ratio = asked([&] { return speculation_ratio(blocks, flags.confidence); });
  std::string text = fmt::format("rho {:.6g} of {} block{}: {}; speed-ups: smaller cache {:.6g}, speculation {:.6g}, both {:.6g}\n", ratio.rho, blocks.size(),
                                 blocks.size() == 1 ? "" : "s", name(ratio.composition), ratio.quant, ratio.spec, ratio.both);
  if (blocks.size() > 1) {
    text += fmt::format("{} interval [{:.6g}, {:.6g}] (exact bootstrap of the median, unadjusted){}\n", percent(flags.confidence), ratio.interval.lower,
                        ratio.interval.upper, ratio.settled ? "" : ": the class is not settled");
  }
  print(flags,
        {{"statistic", "speculation"}, {"method", "both*base/(quant*spec), median of the blocks', exact bootstrap interval; classes below 0.9, to 1.1, above"},
         {"blocks", blocks.size()}, {"rho", ratio.rho}, {"class", name(ratio.composition)}, {"confidence", flags.confidence}, {"lower", ratio.interval.lower},
         {"upper", ratio.interval.upper}, {"class_settled", blocks.size() > 1 ? Answer(ratio.settled) : Answer()}, {"quant_x", ratio.quant}, {"spec_x", ratio.spec},
         {"both_x", ratio.both}},
        text);
}

CLI::App* add_statistic(CLI::App& stats, StatsFlags& flags, const std::string& name, const std::string& about) {
  CLI::App* command = stats.add_subcommand(name, about);
  command->add_flag("--json", flags.json, "One JSON object, every digit");
  return command;
}

void add_values(CLI::App& command, StatsFlags& flags, const std::string& what) {
  command.add_option("values", flags.words, what);
  command.add_option("--file", flags.file, "Read them from a file (- is standard input), separated by spaces, commas or lines");
}

void add_confidence(CLI::App& command, double& confidence) {
  command.add_option("--confidence", confidence, "Between 0 and 1")->capture_default_str();
}

}  // namespace

void add_stats(CLI::App& app) {
  CLI::App* stats = app.add_subcommand("stats", "Exact statistics of gates and paired blocks, for any numbers; needs no model");
  stats->require_subcommand(1);
  auto flags = std::make_shared<StatsFlags>();

  CLI::App* command = add_statistic(*stats, *flags, "gross-loss", "Upper limit of a loss rate, and what a limit lets pass");
  command->add_option("--losses", flags->losses, "Items that the control got right and the candidate wrong")->required();
  command->add_option("--of", flags->of, "All items")->required();
  CLI::Option* limit = command->add_option("--limit", flags->limit, "Share that the upper limit may reach, such as 0.02");
  command->add_option("--loss-rate", flags->loss_rate, "Also the chance to pass where each item is lost with this chance")->needs(limit);
  add_confidence(*command, flags->confidence);
  command->callback([flags] { gross_loss(*flags); });

  command = add_statistic(*stats, *flags, "sign", "One-sided sign test of ratios above 1; ties are no wins");
  add_values(*command, *flags, "Ratios, one a block");
  CLI::Option* wins = command->add_option("--wins", flags->wins, "Instead of ratios: blocks won");
  CLI::Option* of = command->add_option("--of", flags->of, "Blocks");
  wins->needs(of);
  of->needs(wins);
  command->callback([flags, wins] { sign(*flags, wins->count() > 0); });

  command = add_statistic(*stats, *flags, "holm", "Holm's adjustment over a planned family; a missing comparison holds p = 1");
  add_values(*command, *flags, "p values");
  command->add_option("--family", flags->family, "Planned comparisons (as many as there are p values)")
      ->check(CLI::Range(std::int64_t{1}, kMostItems));
  command->callback([flags] { holm_table(*flags); });

  command = add_statistic(*stats, *flags, "median-ci", "Median and its exact bootstrap interval");
  add_values(*command, *flags, "Numbers, such as one ratio a block");
  add_confidence(*command, flags->confidence);
  command->callback([flags] { median_ci(*flags); });

  command = add_statistic(*stats, *flags, "bootstrap-mean", "Mean and its one-sided bootstrap upper limit");
  add_values(*command, *flags, "Numbers, such as one mean a document");
  command->add_option("--limit", flags->limit, "What the upper limit may reach");
  command->add_option("--draws", flags->plan.draws, "Resamples")->capture_default_str();
  command->add_option("--seed", flags->plan.seed, "Of the resamples")->check(whole_number())->capture_default_str();
  add_confidence(*command, flags->plan.confidence);
  command->callback([flags] { bootstrap_mean(*flags); });

  command = add_statistic(*stats, *flags, "spearman", "Rank correlation; equal values share their mean rank");
  command->add_option("--x", flags->x, "Numbers, such as 1,2,3");
  command->add_option("--y", flags->y, "As many");
  command->add_option("--file", flags->file, "Instead: a file (- is standard input) of lines with an x and a y");
  command->callback([flags] { rank_correlation(*flags); });

  command = add_statistic(*stats, *flags, "speculation", "How speculative decoding and a smaller cache compose: rho and its class");
  command->add_option("--base", flags->base, "Throughput with neither, one a block, such as 100,101")->required();
  command->add_option("--quant", flags->quant, "With the smaller cache alone, of the same blocks")->required();
  command->add_option("--spec", flags->spec, "With speculation alone")->required();
  command->add_option("--both", flags->both, "With both")->required();
  add_confidence(*command, flags->confidence);
  command->callback([flags] { speculation(*flags); });
}

}  // namespace keel
