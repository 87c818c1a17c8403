#include "lab/byte_plan_report.h"

#include <functional>

#include "base/bytes.h"
#include "base/error.h"

namespace keel {
namespace {

// "388,352"
std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

class Table {
 public:
  explicit Table(const BytePlan& plan) : plan_(plan) {}

  void head(const std::string& title) {
    text_ += fmt::format("\n{:<34}", title);
    for (const FormatPlan& format : plan_.formats) text_ += fmt::format(" {:>18}", short_name(format.format));
    text_ += '\n';
  }
  void row(const std::string& what, const std::function<std::string(const FormatPlan&)>& cell) {
    text_ += fmt::format("  {:<32}", what);
    for (const FormatPlan& format : plan_.formats) text_ += fmt::format(" {:>18}", cell(format));
    text_ += '\n';
  }
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }
  std::string text() && { return std::move(text_); }

 private:
  const BytePlan& plan_;
  std::string text_;
};

std::string of_pool(const FormatPlan& format, const std::function<std::string(const PoolPlan&)>& cell) {
  return format.pool ? cell(*format.pool) : "none";
}

}  // namespace

std::string to_table(const BytePlan& plan) {
  const PlanOptions& options = plan.options;
  const ModelConfig& rank = plan.rank;
  const std::string batch = options.batch == 1 ? "one sequence" : fmt::format("{} sequences", options.batch);
  Table table(plan);
  table.line("{} ({}): {} layers, {} KV heads of {}. Every figure below is calculated from the config; none is measured.", plan.model,
             rank.architecture, rank.layers, rank.kv_heads, rank.head_dim);
  if (options.ranks > 1) {
    table.line("One of {} tensor-parallel ranks: {} query and {} KV heads, {} feed-forward columns, {} vocabulary rows each. keel itself serves one GPU.",
               options.ranks, rank.heads, rank.kv_heads, rank.intermediate, rank.vocabulary);
  }

  table.head("KV cache");
  table.row("bytes a token and layer", [](const auto& f) { return grouped(f.bytes_per_token_layer); });
  table.row("bytes a token", [](const auto& f) { return grouped(f.bytes_per_token); });
  table.row(fmt::format("bytes a page of {} tokens", options.page_size), [](const auto& f) { return grouped(f.page_bytes); });
  const FormatPlan& first = plan.formats.front();
  table.row("of the first format's bytes", [&](const auto& f) { return fmt::format("{:.4f}", static_cast<double>(f.bytes_per_token) / static_cast<double>(first.bytes_per_token)); });

  if (options.gpu_memory_bytes > 0) {
    table.line("\nGPU memory: {} of {}, less weights of {}, scratch of {}{}", options.gpu_memory_utilization, format_bytes(options.gpu_memory_bytes),
               format_bytes(plan.weights.device), format_bytes(plan.scratch_bytes),
               options.reserved_bytes > 0 ? " and a reserve of " + format_bytes(options.reserved_bytes) : "");
    for (const NamedBytes& part : plan.scratch) table.line("  {:<44} {:>18}", part.name, grouped(part.bytes));
    table.line("  for --max-num-seqs {}, --max-num-batched-tokens {}, --max-model-len {}. Not counted: CUDA's context and modules,", options.max_sequences,
               options.max_tokens, plan.request_tokens);
    table.line("  cuDNN's plans and captured graphs; leave room for them with --reserved-memory.");
  }
  if (options.pool_bytes > 0 || options.gpu_memory_bytes > 0) {
    table.head(options.pool_bytes > 0 ? fmt::format("Pool of {}", format_bytes(options.pool_bytes)) : "Pool");
    table.row("pages", [](const auto& f) { return of_pool(f, [](const PoolPlan& p) { return grouped(p.pages); }); });
    table.row("token slots", [](const auto& f) { return of_pool(f, [](const PoolPlan& p) { return grouped(p.slots); }); });
    table.row("bytes allocated", [](const auto& f) { return of_pool(f, [](const PoolPlan& p) { return grouped(p.allocated_bytes); }); });
    table.row("bytes unused", [](const auto& f) { return of_pool(f, [](const PoolPlan& p) { return grouped(p.unused_bytes); }); });
    table.row(fmt::format("resident requests of {} slots", grouped(plan.request_slots)), [](const auto& f) { return f.pool ? grouped(f.residents) : "none"; });
    for (const FormatPlan& format : plan.formats) {
      if (!format.gpu_refusal.empty()) table.line("  {}: {}", short_name(format.format), format.gpu_refusal);
    }
  }

  if (options.curve) {
    const MeasuredCurve& curve = *options.curve;
    table.head("What the residents buy");
    const auto of_curve = [](const FormatPlan& f, double value) { return f.curve_tokens_per_s > 0 ? fmt::format("{:.5g}", value) : "none"; };
    table.row("batch: all residents decode", [](const auto& f) { return f.pool ? grouped(f.residents) : "none"; });
    table.row("tokens/s on the fitted curve", [&](const auto& f) { return of_curve(f, f.curve_tokens_per_s); });
    table.row("throughput, times the first's", [&](const auto& f) { return of_curve(f, f.throughput_x); });
    table.row("time per token, times the first's", [&](const auto& f) { return of_curve(f, f.token_time_x); });
    table.row("within the measured batches", [&](const auto& f) {
      return f.residents == 0 ? "none" : static_cast<double>(f.residents) <= curve.largest_batch ? "yes" : "extrapolated";
    });
    table.line("  Every format moves along the one curve fitted at context {}, measured up to batch {}: a format's own speed at equal batch is another", curve.context,
               curve.largest_batch);
    table.line("  measurement. Wants enough requests; leaves out queueing, prefill and speculation.");
    for (const std::string& flag : curve.flags) table.line("  ! the fit: {}", flag);
  }

  table.head(fmt::format("Decode, {} of {}", batch, grouped(options.context)));
  table.row("KV share of a step's bytes", [](const auto& f) { return fmt::format("{:.2f} %", 100 * f.traffic_share); });
  table.row(fmt::format("cache read over {} tokens out", grouped(options.output)), [](const auto& f) { return format_bytes(f.generation_bytes); });
  table.line("  weights read a step {} ({}); one request's {} steps read {} cached tokens", grouped(plan.weights.step), format_bytes(plan.weights.step),
             grouped(options.output), grouped(plan.token_reads));

  table.head(fmt::format("Over a link, {} tokens", grouped(options.context)));
  table.row("payload", [](const auto& f) { return fmt::format("{:.6g} GiB", static_cast<double>(f.payload_bytes) / 0x1p30); });
  for (std::size_t i = 0; i < options.workloads.size(); ++i) {
    table.row(options.workloads[i].name, [i](const auto& f) { return fmt::format("{:.6g} GB/s", f.link_gbps[i]); });
  }
  for (const LinkWorkload& workload : options.workloads) {
    std::string details = fmt::format("{} within {} ms", workload.moves, workload.deadline_s * 1e3);
    if (workload.events_per_second > 0) details += fmt::format(", {} a second", workload.events_per_second);
    if (workload.share < 1) details += fmt::format(", {} of the cache", workload.share);
    if (workload.concurrent > 1) details += fmt::format(", {} sequences at once", workload.concurrent);
    table.line("  {}: {}", workload.name, details);
  }
  table.line("  Payload alone, decimal GB/s: no metadata, protocol or packing. These are three different requirements, not one for an SSD.");

  table.head(fmt::format("NVMe, chunks of {} tokens", grouped(options.chunk_tokens)));
  table.row("payload bytes", [](const auto& f) { return grouped(f.chunk.payload_bytes); });
  table.row("load commands", [](const auto& f) { return grouped(f.chunk.load_commands); });
  table.row("store commands, with a header", [](const auto& f) { return grouped(f.chunk.store_commands); });
  table.row("bytes loaded", [](const auto& f) { return grouped(f.chunk.load_bytes); });
  table.row("bytes stored", [](const auto& f) { return grouped(f.chunk.store_bytes); });
  table.line("  commands of at most {}; each rounded up to {} bytes", format_bytes(options.transfer_bytes), kIoBlockBytes);
  return std::move(table).text();
}

nlohmann::ordered_json as_json(const BytePlan& plan) {
  using Json = nlohmann::ordered_json;
  const PlanOptions& options = plan.options;
  const ModelConfig& rank = plan.rank;
  Json json{{"record", "keel plan"},
            {"basis", "calculated"},
            {"model", plan.model},
            {"architecture", rank.architecture},
            {"tensor_parallel_size", options.ranks},
            {"rank", {{"layers", rank.layers}, {"heads", rank.heads}, {"kv_heads", rank.kv_heads}, {"head_dim", rank.head_dim},
                      {"intermediate", rank.intermediate}, {"vocabulary", rank.vocabulary}}},
            {"context", options.context},
            {"output", options.output},
            {"batch", options.batch},
            {"page_size", options.page_size},
            {"request_slots", plan.request_slots},
            {"cached_token_reads", plan.token_reads},
            {"weight_bytes", plan.weights.device},
            {"weight_bytes_step", plan.weights.step},
            {"other_bytes_step", options.other_step_bytes},
            {"max_num_seqs", options.max_sequences},
            {"max_num_batched_tokens", options.max_tokens},
            {"cuda_scratch_bytes", plan.scratch_bytes}};
  for (const NamedBytes& part : plan.scratch) json["cuda_scratch"][part.name] = part.bytes;
  json["not_counted"] = {"CUDA's context and modules", "cuDNN's plans", "captured graphs"};
  if (options.gpu_memory_bytes > 0) {
    json["gpu_memory_bytes"] = options.gpu_memory_bytes;
    json["gpu_memory_utilization"] = options.gpu_memory_utilization;
    json["reserved_bytes"] = options.reserved_bytes;
  }
  for (const LinkWorkload& workload : options.workloads) {
    json["workloads"].push_back({{"name", workload.name}, {"deadline_s", workload.deadline_s}, {"events_per_second", workload.events_per_second},
                                 {"share", workload.share}, {"concurrent", workload.concurrent}});
  }
  if (options.curve) {
    const MeasuredCurve& curve = *options.curve;
    json["curve"] = {{"ceiling", curve.hill.ceiling}, {"half_batch", curve.hill.half_batch}, {"gamma", curve.hill.gamma}, {"context", curve.context},
                     {"largest_batch", curve.largest_batch}, {"flags", curve.flags}};
  }
  json["chunk_tokens"] = options.chunk_tokens;
  json["max_transfer_bytes"] = options.transfer_bytes;
  for (const FormatPlan& format : plan.formats) {
    Json one{{"format", short_name(format.format)},
             {"key_type", name(format.format.key)},
             {"value_type", name(format.format.value)},
             {"bytes_per_token_layer", format.bytes_per_token_layer},
             {"bytes_per_token", format.bytes_per_token},
             {"page_bytes", format.page_bytes}};
    if (format.pool) {
      one["pool"] = {{"bytes", format.pool_bytes}, {"pages", format.pool->pages}, {"slots", format.pool->slots},
                     {"allocated_bytes", format.pool->allocated_bytes}, {"unused_bytes", format.pool->unused_bytes}, {"resident_requests", format.residents}};
    }
    if (format.curve_tokens_per_s > 0) {
      one["curve"] = {{"batch", format.residents}, {"tokens_per_s", format.curve_tokens_per_s}, {"throughput_x", format.throughput_x},
                      {"token_time_x", format.token_time_x}, {"extrapolated", static_cast<double>(format.residents) > options.curve->largest_batch}};
    }
    if (!format.gpu_refusal.empty()) one["refused"] = format.gpu_refusal;
    one["kv_share_of_step"] = format.traffic_share;
    one["generation_cache_bytes"] = format.generation_bytes;
    one["payload_bytes"] = format.payload_bytes;
    one["link_gb_per_s"] = format.link_gbps;
    one["nvme"] = {{"payload_bytes", format.chunk.payload_bytes}, {"load_commands", format.chunk.load_commands}, {"load_bytes", format.chunk.load_bytes},
                   {"store_commands", format.chunk.store_commands}, {"store_bytes", format.chunk.store_bytes}};
    json["formats"].push_back(std::move(one));
  }
  return json;
}

}  // namespace keel
