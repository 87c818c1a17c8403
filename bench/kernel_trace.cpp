// Where a decode step's time goes, kernel by kernel: a library that CUDA loads into any program.
//
//   CUDA_INJECTION64_PATH=BUILD/bench/libkernel_trace.so KERNEL_TRACE=FILE keel bench latency …
//
// Its CUPTI callbacks keep the kernels of replayed graphs; at the program's end FILE gets a table a graph: each kind of kernel in the order
// of the step, with its launches, its own microseconds, and those from the end of all before it to its own end, which add up to the step.
// A kind is a kernel's name, its grid and the kernel before it, so that one kernel in two places of a layer is two. Figures are medians
// over the graph's replays; graphs of few kernels, such as products that are measured alone, are left out. A kernel that starts while the
// one before it drains has own time in which it waits.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Launch {
  std::uint64_t start, end;  // ns
  std::string name;          // as linked
  std::int32_t grid[3];
};
using Replays = std::map<std::uint32_t, std::vector<Launch>>;  // by the correlation of the graph's launch

constexpr std::size_t kLeastKernels = 20;  // of a graph that is told

std::mutex mutex;
std::map<std::uint32_t, Replays> graphs;
std::size_t dropped = 0;

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* words = nullptr;
  cuptiGetResultString(result, &words);
  std::fprintf(stderr, "kernel trace: %s: %s\n", what, words == nullptr ? "?" : words);
}

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;
}

void take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    if (kernel->graphId == 0) continue;
    graphs[kernel->graphId][kernel->correlationId].push_back({kernel->start, kernel->end, kernel->name, {kernel->gridX, kernel->gridY, kernel->gridZ}});
  }
  std::size_t lost = 0;
  check(cuptiActivityGetNumDroppedRecords(context, stream, &lost), "lost records");
  dropped += lost;
  std::free(buffer);
}

// Without return type, namespaces and parameters; template arguments kept.
std::string short_name(const std::string& linked) {
  int status = 0;
  char* whole = abi::__cxa_demangle(linked.c_str(), nullptr, nullptr, &status);
  std::string name = whole == nullptr ? linked : whole;
  std::free(whole);
  for (const char* noise : {"(anonymous namespace)::", "keel::cuda::", "keel::", "(keel::DType)", "(bool)", "(int)", "void "}) {
    for (std::size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, std::strlen(noise));
  }
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (depth == 0 && name[i] == '(' && i > 0) return name.substr(0, i);
  }
  return name;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Kind {
  std::string name, grid, after;
  std::size_t first = 0;  // place in the step
  std::vector<double> launches, own_us, added_us;  // one a replay
};

void write_graph(std::FILE* out, std::uint32_t graph, Replays& replays) {
  std::map<std::string, Kind> kinds;
  std::vector<double> step_us;
  std::map<std::string, std::string> short_names;
  std::size_t replay = 0;
  for (auto& [correlation, launches] : replays) {
    std::sort(launches.begin(), launches.end(), [](const Launch& a, const Launch& b) { return a.start < b.start; });
    std::uint64_t ended = launches.front().start;
    std::string before;
    for (std::size_t i = 0; i < launches.size(); ++i) {
      const Launch& launch = launches[i];
      std::string& name = short_names[launch.name];
      if (name.empty()) name = short_name(launch.name);
      const std::string grid = std::to_string(launch.grid[0]) + "x" + std::to_string(launch.grid[1]) + "x" + std::to_string(launch.grid[2]);
      Kind& kind = kinds[name + "|" + grid + "|" + before];
      if (kind.name.empty()) kind = {.name = name, .grid = grid, .after = before, .first = i};
      for (auto* figure : {&kind.launches, &kind.own_us, &kind.added_us}) figure->resize(replay + 1);
      kind.launches[replay] += 1;
      kind.own_us[replay] += static_cast<double>(launch.end - launch.start) * 1e-3;
      kind.added_us[replay] += launch.end > ended ? static_cast<double>(launch.end - ended) * 1e-3 : 0;
      ended = std::max(ended, launch.end);
      before = name.substr(0, name.find('<'));
    }
    step_us.push_back(static_cast<double>(ended - launches.front().start) * 1e-3);
    ++replay;
  }
  std::vector<Kind*> order;
  for (auto& [key, kind] : kinds) {
    for (auto* figure : {&kind.launches, &kind.own_us, &kind.added_us}) figure->resize(replay);
    order.push_back(&kind);
  }
  std::sort(order.begin(), order.end(), [](const Kind* a, const Kind* b) { return a->first < b->first; });
  const double step = median(step_us);
  std::fprintf(out, "graph %u: %zu replays, %.1f us from the first kernel's start to the last one's end\n", graph, replay, step);
  std::fprintf(out, "%9s %11s %11s %7s  %-14s %s\n", "launches", "own us", "added us", "share", "grid", "kernel (after)");
  double all = 0;
  for (const Kind* kind : order) {
    const double added = median(kind->added_us);
    all += added;
    std::fprintf(out, "%9.0f %11.1f %11.1f %6.2f%%  %-14s %.110s (%.40s)\n", median(kind->launches), median(kind->own_us), added, 100 * added / step, kind->grid.c_str(),
                 kind->name.c_str(), kind->after.c_str());
  }
  std::fprintf(out, "%9s %11s %11.1f %6.2f%%  all\n\n", "", "", all, 100 * all / step);
}

void write_tables() {
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "the last records");
  const std::lock_guard lock(mutex);
  const char* path = std::getenv("KERNEL_TRACE");
  std::FILE* out = path == nullptr ? stderr : std::fopen(path, "w");
  if (out == nullptr) {
    std::fprintf(stderr, "kernel trace: %s cannot be written\n", path);
    return;
  }
  std::erase_if(graphs, [](const auto& graph) { return graph.second.begin()->second.size() < kLeastKernels; });
  if (graphs.empty()) std::fprintf(out, "no graph of %zu kernels or more was replayed\n", kLeastKernels);
  for (auto& [graph, replays] : graphs) write_graph(out, graph, replays);
  if (dropped > 0) std::fprintf(out, "%zu records were lost: the tables are short of them\n", dropped);
  if (path != nullptr) std::fclose(out);
}

}  // namespace

// CUDA calls this as it initialises.
extern "C" int InitializeInjection() {
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "callbacks");
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernel records");
  std::atexit(write_tables);
  return 1;
}
