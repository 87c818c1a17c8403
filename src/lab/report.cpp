#include "lab/report.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "kv/format.h"

namespace keel {
namespace {

constexpr std::size_t kWidth = 50;

std::string_view heading(Metric metric) {
  switch (metric) {
    case Metric::ttft: return "Time to First Token";
    case Metric::tpot: return "Time per Output Token (excl. 1st token)";
    case Metric::itl: return "Inter-token Latency";
    case Metric::e2el: return "End-to-end Latency";
  }
  return "";
}

const Sample& sample_of(const RunFigures& figures, Metric metric) {
  switch (metric) {
    case Metric::ttft: return figures.ttft_s;
    case Metric::tpot: return figures.tpot_s;
    case Metric::itl: return figures.itl_s;
    case Metric::e2el: return figures.e2el_s;
  }
  return figures.ttft_s;
}

struct GpuFigure {
  const char *name, *heading;
  double GpuReading::*member;
};
constexpr GpuFigure kGpuFigures[] = {{"sm_mhz", "SM clock (MHz)", &GpuReading::sm_mhz},
                                     {"memory_mhz", "Memory clock (MHz)", &GpuReading::memory_mhz},
                                     {"power_w", "Power (W)", &GpuReading::power_w},
                                     {"temperature_c", "Temperature (C)", &GpuReading::temperature_c}};

Sample sample_of(const GpuRun& gpu, double GpuReading::*member) {
  std::vector<double> values;
  for (const GpuReading& reading : gpu.readings) {
    if (!std::isnan(reading.*member)) values.push_back(reading.*member);
  }
  return Sample(std::move(values));
}

std::string upper(std::string_view word) {
  std::string result(word);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

std::string_view name(Metric metric) {
  switch (metric) {
    case Metric::ttft: return "ttft";
    case Metric::tpot: return "tpot";
    case Metric::itl: return "itl";
    case Metric::e2el: return "e2el";
  }
  return "";
}

ResultBlock::ResultBlock(std::string_view title) { centred(fmt::format(" {} ", title), '='); }

void ResultBlock::centred(std::string_view title, char fill) {
  const std::size_t room = kWidth > title.size() ? kWidth - title.size() : 0;
  text_ += std::string(room / 2, fill) + std::string(title) + std::string(room - room / 2, fill) + '\n';
}

void ResultBlock::section(std::string_view title) { centred(title, '-'); }

void ResultBlock::row(std::string_view what, std::int64_t value) {
  text_ += fmt::format("{:<40} {}\n", fmt::format("{}:", what), value);
}

void ResultBlock::row(std::string_view what, double value) {
  const std::string number = !std::isfinite(value)        ? "n/a"
                             : std::fabs(value) < 1 && value != 0 ? fmt::format("{:.4f}", value)
                                                                  : fmt::format("{:.2f}", value);
  text_ += fmt::format("{:<40} {}\n", fmt::format("{}:", what), number);
}

void ResultBlock::row(std::string_view what, std::string_view value) { text_ += fmt::format("{:<40} {}\n", fmt::format("{}:", what), value); }

std::string ResultBlock::text() const { return text_ + std::string(kWidth, '=') + '\n'; }

void ResultBlock::add_requests(const RunFigures& figures) {
  row("Benchmark duration (s)", figures.duration_s);
  row("Total input tokens", figures.input_tokens);
  row("Total generated tokens", figures.output_tokens);
  row("Request throughput (req/s)", figures.requests_per_s());
  row("Output token throughput (tok/s)", figures.output_tokens_per_s());
  row("Peak concurrent requests", figures.peak_concurrent);
  row("Total token throughput (tok/s)", figures.total_tokens_per_s());
}

void ResultBlock::add_metrics(const RunFigures& figures, const MetricChoice& choice) {
  for (const Metric metric : choice.metrics) {
    const Sample& sample = sample_of(figures, metric);
    const std::string word = upper(name(metric));
    section(heading(metric));
    row(fmt::format("Mean {} (ms)", word), sample.mean() * 1e3);
    row(fmt::format("Median {} (ms)", word), sample.median() * 1e3);
    for (const double percent : choice.percentiles) row(fmt::format("P{:g} {} (ms)", percent, word), sample.percentile(percent) * 1e3);
  }
}

void ResultBlock::add_phases(const Phases& phases, const StepWork& work, const std::optional<GpuRun>& gpu) {
  const PhaseFigures &prefill = phases.prefill, &decode = phases.decode;
  section("Prefill steps (some with decode rows)");
  row("Steps", prefill.steps);
  row("Time (s)", prefill.seconds);
  row("Throughput (tok/s)", prefill.rows_per_s());
  row("Median step (ms)", prefill.step_s.median() * 1e3);
  row("Arithmetic (TFLOP/s)", prefill.flops_per_s(work) / 1e12);
  section("Decode steps");
  row("Steps", decode.steps);
  row("Time (s)", decode.seconds);
  row("Throughput (tok/s)", decode.rows_per_s());
  row("Median step (ms)", decode.step_s.median() * 1e3);
  row("Mean sequences in a step", decode.rows_per_step());
  row("Weights and cache a step (MB)", decode.bytes_per_step(work) / 1e6);
  row("Bandwidth (GB/s)", decode.bytes_per_s(work) / 1e9);
  if (gpu && gpu->read_bytes_per_s > 0) {
    row("A kernel that only reads (GB/s)", gpu->read_bytes_per_s / 1e9);
    row("Share of that (%)", 100 * decode.bytes_per_s(work) / gpu->read_bytes_per_s);
  }
}

void ResultBlock::add_route_seconds(const RouteSeconds& seconds) {
  if (seconds.empty()) return;
  section("Attention by route");
  for (const auto& [route, one] : seconds) row(fmt::format("{} (s)", route), one);
}

void ResultBlock::add_gpu(const GpuRun& gpu) {
  section("GPU (begin, min, median, max, end)");
  if (!gpu.problem.empty()) return row("Not known", std::string_view(gpu.problem));
  row("Driver", std::string_view(gpu.driver));
  for (const GpuFigure& figure : kGpuFigures) {
    const Sample sample = sample_of(gpu, figure.member);
    row(figure.heading, std::string_view(fmt::format("{:.0f}, {:.0f}, {:.0f}, {:.0f}, {:.0f}", gpu.readings.front().*figure.member, sample.percentile(0), sample.median(),
                                                     sample.percentile(100), gpu.readings.back().*figure.member)));
  }
  row("Power limit (W)", gpu.power_limit_w);
}

RecordJson as_json(const Sample& seconds, std::span<const double> percentiles) {
  RecordJson json = {{"count", seconds.size()},
                     {"mean_ms", seconds.mean() * 1e3},
                     {"std_ms", seconds.stddev() * 1e3},
                     {"median_ms", seconds.median() * 1e3}};
  for (const double percent : percentiles) json[fmt::format("p{:g}_ms", percent)] = seconds.percentile(percent) * 1e3;
  return json;
}

RecordJson as_json(const RunFigures& figures, const MetricChoice& choice) {
  RecordJson json = {{"completed", figures.completed},
                     {"failed", figures.failed},
                     {"duration_s", figures.duration_s},
                     {"input_tokens", figures.input_tokens},
                     {"output_tokens", figures.output_tokens},
                     {"requests_per_s", figures.requests_per_s()},
                     {"output_tokens_per_s", figures.output_tokens_per_s()},
                     {"total_tokens_per_s", figures.total_tokens_per_s()},
                     {"peak_concurrent", figures.peak_concurrent},
                     {"mean_wait_ms", figures.wait_s.mean() * 1e3}};
  for (const Metric metric : kAllMetrics) json[std::string(name(metric))] = as_json(sample_of(figures, metric), choice.percentiles);
  return json;
}

RecordJson as_json(const std::optional<GpuRun>& gpu) {
  if (!gpu) return nullptr;
  const RecordJson read = gpu->read_bytes_per_s > 0 ? RecordJson(gpu->read_bytes_per_s / 1e9) : RecordJson();
  if (!gpu->problem.empty()) return {{"problem", gpu->problem}, {"read_gb_per_s", read}};
  RecordJson json = {{"driver", gpu->driver}, {"power_limit_w", gpu->power_limit_w}, {"readings", gpu->readings.size()}};
  for (const GpuFigure& figure : kGpuFigures) {
    const Sample sample = sample_of(*gpu, figure.member);
    json[figure.name] = {{"begin", gpu->readings.front().*figure.member},
                         {"min", sample.percentile(0)},
                         {"median", sample.median()},
                         {"max", sample.percentile(100)},
                         {"end", gpu->readings.back().*figure.member}};
  }
  json["read_gb_per_s"] = read;
  return json;
}

namespace {

RecordJson steps_of(const PhaseFigures& phase) {
  return {{"steps", phase.steps},
          {"seconds", phase.seconds},
          {"rows", phase.rows},
          {"rows_per_s", phase.rows_per_s()},
          {"rows_per_step", phase.rows_per_step()},
          {"median_step_ms", phase.step_s.median() * 1e3}};
}

}  // namespace

RecordJson prefill_as_json(const PhaseFigures& phase, const StepWork& work) {
  RecordJson json = steps_of(phase);
  json["tflop_per_s"] = phase.flops_per_s(work) / 1e12;
  return json;
}

RecordJson decode_as_json(const PhaseFigures& phase, const StepWork& work, const std::optional<GpuRun>& gpu) {
  RecordJson json = steps_of(phase);
  json["bytes_per_step"] = phase.bytes_per_step(work);
  json["gb_per_s"] = phase.bytes_per_s(work) / 1e9;
  const bool measured = gpu && gpu->read_bytes_per_s > 0;
  json["share_of_read_rate"] = measured ? RecordJson(phase.bytes_per_s(work) / gpu->read_bytes_per_s) : RecordJson();
  return json;
}

RecordJson as_json(const Attestation& a) {
  RecordJson json = {{"model", a.model},
          {"family", a.family},
          {"weights", a.weights_format},
          {"weight_bytes", a.weight_bytes},
          {"unread_embedding_bytes", a.unread_embedding_bytes},
          {"device", a.device},
          {"kv_cache", short_name(a.format)},
          {"key_type", name(a.format.key)},
          {"value_type", name(a.format.value)},
          {"scales", a.scales},
          {"bytes_per_token", a.bytes_per_token},
          {"pool_bytes", a.pool_bytes},
          {"slots", a.slots},
          {"page_size", a.page_size},
          {"max_model_len", a.max_model_len}};
  if (const DeviceMemory& m = a.device_memory; m.total > 0) {
    json["device_memory"] = {{"weights", m.weights}, {"workspace", m.workspace}, {"cache", m.cache}, {"other", m.other()},
                             {"in_use", m.in_use}, {"total", m.total}, {"peak", m.peak}};
  }
  return json;
}

RecordJson requests_as_json(std::span<const RequestTimes> requests, bool token_times) {
  RecordJson list = RecordJson::array();
  for (const RequestTimes& request : requests) {
    RecordJson json = {{"due_s", request.due_s},
                       {"sent_s", request.sent_s},
                       {"first_token_s", request.token_s.empty() ? RecordJson() : RecordJson(request.token_s.front())},
                       {"ended_s", request.ended_s},
                       {"input_tokens", request.prompt_tokens},
                       {"output_tokens", request.output_tokens}};
    if (!request.error.empty()) json["error"] = request.error;
    if (token_times) json["token_s"] = request.token_s;
    list.push_back(std::move(json));
  }
  return list;
}

RecordJson steps_as_json(std::span<const StepTime> steps) {
  RecordJson list = RecordJson::array();
  for (const StepTime& step : steps) {
    list.push_back({{"seconds", step.seconds},
                    {"prefill_rows", step.prefill_rows},
                    {"decode_rows", step.decode_rows},
                    {"attended_tokens", step.attended_tokens},
                    {"logit_rows", step.logit_rows}});
  }
  return list;
}

}  // namespace keel
