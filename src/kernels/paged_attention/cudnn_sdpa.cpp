#include "kernels/paged_attention/cudnn_sdpa.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "device/cuda.h"

namespace keel::cuda {
namespace {

namespace fe = cudnn_frontend;

constexpr const char* kWorkspace = "cuDNN's attention";
constexpr const char* kNoKernel = "cuDNN has no attention kernel for the shape";

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kQLengths, kKvLengths, kQOffsets, kKvOffsets, kOutOffsets };

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) fail("cuDNN {}: {}: {}", cudnnGetVersion(), what, cudnnGetErrorString(status));
}

SdpaRefusal refusal(const char* reason, const SdpaShape& s, const std::string& words) {
  return {reason, fmt::format("{}: {} sequences of {} rows over {} tokens, {}/{} heads of {} in {}{}{}: cuDNN {}: {}", reason, s.batch, s.q_tokens, s.kv_tokens, s.heads,
                              s.kv_heads, s.head_dim, name(s.dtype), s.causal ? ", causal" : "",
                              s.lengths == SdpaLengths::exact ? "" : s.lengths == SdpaLengths::padded ? ", padded" : ", ragged", cudnnGetVersion(), words)};
}

void check(fe::error_t error, const SdpaShape& s) {
  if (error.is_bad()) throw refusal(kNoKernel, s, error.get_message());
}

struct Plan {
  fe::graph::Graph graph;
  std::int64_t workspace_bytes = 0;
};

std::unique_ptr<Plan> build(cudnnHandle_t handle, const SdpaShape& s) {
  for (const std::int64_t stride : {s.q_stride, s.kv_stride, s.out_stride}) {  // cuDNN 9.14 has plans for others, which read where nothing is
    if (stride % 8 != 0) throw refusal(kNoKernel, s, fmt::format("rows {} elements apart do not begin at 16 bytes", stride));
  }
  auto plan = std::make_unique<Plan>();
  fe::graph::Graph& graph = plan->graph;
  graph.set_io_data_type(s.dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);

  const auto integers = [&](Uid uid, const char* what, std::int64_t count) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_name(what).set_uid(uid).set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(fe::DataType_t::INT32));
  };
  // Offsets, lengths and strides of a ragged tensor: cuDNN takes the sequences' starts from the offsets.
  const auto strides = [&](std::int64_t token, std::int64_t sequence, std::int64_t tokens) {
    return std::vector<std::int64_t>{s.lengths == SdpaLengths::ragged ? tokens * token : sequence, s.head_dim, token, 1};
  };
  const auto input = [&](Uid uid, const char* what, std::int64_t heads, std::int64_t tokens, std::int64_t stride, std::int64_t sequence,
                         const std::shared_ptr<fe::graph::Tensor_attributes>& offsets) {
    auto attributes = fe::graph::Tensor_attributes()
                          .set_name(what)
                          .set_uid(uid)
                          .set_dim({s.batch, heads, tokens, s.head_dim})
                          .set_stride(strides(stride, sequence, tokens));
    if (offsets) attributes.set_ragged_offset(offsets);
    return graph.tensor(attributes);
  };
  std::shared_ptr<fe::graph::Tensor_attributes> q_offsets, kv_offsets, out_offsets;
  if (s.lengths == SdpaLengths::ragged) {
    q_offsets = integers(kQOffsets, "q_offsets", s.batch + 1);
    kv_offsets = integers(kKvOffsets, "kv_offsets", s.batch + 1);
    out_offsets = integers(kOutOffsets, "out_offsets", s.batch + 1);
  }
  const auto q = input(kQ, "q", s.heads, s.q_tokens, s.q_stride, s.q_sequence, q_offsets);
  const auto k = input(kK, "k", s.kv_heads, s.kv_tokens, s.kv_stride, s.kv_sequence, kv_offsets);
  const auto v = input(kV, "v", s.kv_heads, s.kv_tokens, s.kv_stride, s.kv_sequence, kv_offsets);

  auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(s.stats).set_attn_scale(s.softmax_scale);
  if (s.causal) {
    options.set_diagonal_alignment(s.square ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  if (s.lengths != SdpaLengths::exact) {
    options.set_padding_mask(true)
        .set_seq_len_q(integers(kQLengths, "q_lengths", s.batch))
        .set_seq_len_kv(integers(kKvLengths, "kv_lengths", s.batch));
  }
  auto [out, stats] = graph.sdpa(q, k, v, options);
  out->set_output(true)
      .set_uid(kOut)
      .set_dim({s.batch, s.heads, s.q_tokens, s.head_dim})
      .set_stride(strides(s.out_stride, s.out_sequence, s.q_tokens));
  if (out_offsets) out->set_ragged_offset(out_offsets);
  if (s.stats) {
    stats->set_output(true)
        .set_uid(kStats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s.batch, s.heads, s.q_tokens, 1})
        .set_stride({s.heads * s.q_tokens, s.q_tokens, 1, 1});
  }
  check(graph.validate(), s);
  check(graph.build_operation_graph(handle), s);
  check(graph.create_execution_plans({fe::HeurMode_t::A}), s);
  check(graph.check_support(handle), s);
  check(graph.build_plans(handle), s);
  check(graph.get_workspace_size(plan->workspace_bytes), s);
  return plan;
}

}  // namespace

struct CudnnSdpa::State {
  struct Kept {
    std::unique_ptr<Plan> plan;
    std::optional<SdpaRefusal> refusal = {};  // why it is not run
    std::uint64_t used = 0;                   // by which call
  };
  cudnnHandle_t handle = nullptr;
  std::size_t most_plans;
  std::map<SdpaShape, Kept> plans;
  std::int64_t built = 0;
  std::uint64_t calls = 0;
  DeviceBuffer<std::byte> workspace;

  Kept& kept(const SdpaShape& shape) {
    auto found = plans.find(shape);
    if (found == plans.end()) found = keep(shape);
    found->second.used = ++calls;
    return found->second;
  }

  std::map<SdpaShape, Kept>::iterator keep(const SdpaShape& shape) {
    Kept added;
    try {
      added.plan = build(handle, shape);
    } catch (const SdpaRefusal& refusal) {
      log_warning("{}", refusal.what());
      added.refusal = refusal;
    }
    if (plans.size() >= most_plans) {
      cuda::check(cudaDeviceSynchronize(), "wait for the plans in use");
      plans.erase(std::min_element(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    ++built;
    return plans.insert_or_assign(shape, std::move(added)).first;
  }

  void refuse(Kept& kept, const SdpaRefusal& refusal) {
    log_warning("{}", refusal.what());
    kept.refusal = refusal;
    throw refusal;
  }
};

CudnnSdpa::CudnnSdpa(std::size_t most_plans, std::int64_t workspace_bytes)
    : state_(new State{.most_plans = most_plans, .workspace = DeviceBuffer<std::byte>(static_cast<std::size_t>(workspace_bytes), kWorkspace)}) {
  check(cudnnCreate(&state_->handle), "start");
}
CudnnSdpa::~CudnnSdpa() { cudnnDestroy(state_->handle); }

std::string CudnnSdpa::prepare(std::span<const SdpaShape> shapes) {
  std::int64_t most = 0;
  for (const SdpaShape& shape : shapes) {  // one by one: a handle serves one thread at a time
    if (const State::Kept& kept = state_->kept(shape); kept.plan) most = std::max(most, kept.plan->workspace_bytes);
  }
  if (most > state_->workspace.bytes()) {
    DeviceBuffer<std::byte> larger(static_cast<std::size_t>(most), kWorkspace);  // first: where there is no room, all stays as it was
    cuda::check(cudaDeviceSynchronize(), "wait for the plans in use");
    state_->workspace = std::move(larger);
    for (auto& [shape, kept] : state_->plans) {
      if (kept.plan) kept.refusal.reset();  // which may have wanted that
    }
  }
  for (const SdpaShape& shape : shapes) {
    if (const auto found = state_->plans.find(shape); found != state_->plans.end() && found->second.refusal) return found->second.refusal->what();
  }
  return "";
}

void CudnnSdpa::run(cudaStream_t stream, const SdpaShape& shape, const SdpaArgs& args) {
  State::Kept& kept = state_->kept(shape);
  if (kept.refusal) throw *kept.refusal;
  if (kept.plan->workspace_bytes > state_->workspace.bytes()) {
    state_->refuse(kept, refusal("cuDNN's plan wants more workspace than was set aside", shape,
                                 fmt::format("{} of {} bytes", kept.plan->workspace_bytes, state_->workspace.bytes())));
  }
  check(cudnnSetStream(state_->handle, stream), "choose the stream");
  std::unordered_map<std::int64_t, void*> tensors = {
      {kQ, const_cast<void*>(args.q)}, {kK, const_cast<void*>(args.k)}, {kV, const_cast<void*>(args.v)}, {kOut, args.out}};
  const auto add = [&](Uid uid, const std::int32_t* integers) { tensors[uid] = const_cast<std::int32_t*>(integers); };
  if (shape.stats) tensors[kStats] = args.stats;
  if (shape.lengths != SdpaLengths::exact) {
    add(kQLengths, args.q_lengths);
    add(kKvLengths, args.kv_lengths);
  }
  if (shape.lengths == SdpaLengths::ragged) {
    add(kQOffsets, args.q_offsets);
    add(kKvOffsets, args.kv_offsets);
    add(kOutOffsets, args.out_offsets);
  }
  if (fe::error_t error = kept.plan->graph.execute(state_->handle, tensors, state_->workspace.data()); error.is_bad()) {
    state_->refuse(kept, refusal("cuDNN failed to run its plan", shape, error.get_message()));
  }
}

SdpaShape CudnnSdpa::in_faster_form(cudaStream_t stream, const SdpaShape& shape, const SdpaArgs& args) {
  keel::check(shape.causal && shape.lengths == SdpaLengths::exact && shape.q_tokens == shape.kv_tokens, "only square attention has two forms of a causal mask");
  constexpr int kBlocks = 15, kUncounted = 6;
  SdpaShape forms[] = {shape, shape};
  forms[0].square = true;
  forms[1].square = false;
  prepare(forms);
  if (has(forms[0]) != has(forms[1])) return forms[has(forms[1])];
  std::vector<double> ratios;
  Event begin, end;
  for (int block = 0; block < kUncounted + kBlocks; ++block) {
    double milliseconds[2] = {};
    for (const int form : {0, 1, 1, 0}) {  // a clock that falls or rises meets both alike
      begin.record(stream);
      for (int i = 0; i < 2; ++i) run(stream, forms[form], args);
      end.record(stream);
      milliseconds[form] += end.milliseconds_since(begin);
    }
    if (block >= kUncounted) ratios.push_back(milliseconds[1] / milliseconds[0]);
  }
  std::sort(ratios.begin(), ratios.end());
  return forms[ratios[kBlocks / 2] < 0.995];  // no choice by chance where they are alike
}

std::int64_t CudnnSdpa::workspace_bytes() const { return state_->workspace.bytes(); }
bool CudnnSdpa::has(const SdpaShape& shape) const {
  const auto found = state_->plans.find(shape);
  return found != state_->plans.end() && !found->second.refusal;
}
std::int64_t CudnnSdpa::built() const { return state_->built; }
std::int64_t CudnnSdpa::plans() const { return static_cast<std::int64_t>(state_->plans.size()); }

}  // namespace keel::cuda
