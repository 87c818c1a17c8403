#include "kernels/gemm/library_gemm.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/gemm/gemm_kernels.h"

namespace keel::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr std::int64_t kMostElements = (std::int64_t{1} << 31) - 1;  // of x or out in one call

void check_library(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string message = fmt::format("cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory(message);
  throw Error(message);
}

cudaDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: break;
  }
  keel::check(false, "a product is of f16, bf16 or f32");
  return CUDA_R_32F;
}

// The bias is added by the library where it has the output's type.
bool has_bias_epilogue(const GemmArgs& args) { return args.weights.bias != nullptr && args.out_type == args.weights.dtype; }

// cuBLASLt's matrices are column-major: out as [N, tokens] = W (given as [K, N], transposed) · x as [K, tokens].
class Description {
 public:
  Description(const GemmArgs& args, std::int64_t tokens) {
    const GemmWeights& w = args.weights;
    const cudaDataType type = data_type(w.dtype), out_type = data_type(args.out_type);
    check_library(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (has_bias_epilogue(args)) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, w.bias);
    }
    layout(weights, type, w.columns, w.rows);
    layout(x, type, w.columns, tokens);
    layout(out, out_type, w.rows, tokens);
  }
  ~Description() {
    cublasLtMatrixLayoutDestroy(out);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(weights);
    cublasLtMatmulDescDestroy(product);
  }
  Description(const Description&) = delete;

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, x = nullptr, out = nullptr;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_library(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)), "an attribute");
  }
  static void layout(cublasLtMatrixLayout_t& layout, cudaDataType type, std::int64_t rows, std::int64_t columns) {
    check_library(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows),
                  "a matrix layout");
  }
};

std::int64_t tokens_of_call(const GemmArgs& args) {
  const std::int64_t most = kMostElements / std::max(args.weights.rows, args.weights.columns);
  const std::int64_t calls = (args.tokens + most - 1) / most;
  return calls == 1 ? args.tokens : std::min(most, ((args.tokens + calls - 1) / calls + 127) / 128 * 128);
}

std::uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address % 256 == 0 ? 256 : address % 16 == 0 ? 16 : 2;
}

}  // namespace

LibraryGemm::LibraryGemm() : workspace_(kWorkspaceBytes, "cuBLASLt's workspace") { check_library(cublasLtCreate(&handle_), "its start"); }
LibraryGemm::~LibraryGemm() { cublasLtDestroy(handle_); }

std::vector<cublasLtMatmulAlgo_t> LibraryGemm::algorithms(const GemmArgs& args, int count) const {
  const Description d(args, tokens_of_call(args));
  cublasLtMatmulPreference_t preference;
  check_library(cublasLtMatmulPreferenceCreate(&preference), "a preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_library(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_.size()));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(args.weights.dense));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(args.x));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(args.out));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(args.out));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, d.product, d.weights, d.x, d.out, d.out, preference, count, results.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
    fail("cuBLASLt has no algorithm for {} tokens × [{}, {}] {} to {}: {}", args.tokens, args.weights.rows, args.weights.columns,
         name(args.weights.dtype), name(args.out_type), cublasLtGetStatusString(status));
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[static_cast<std::size_t>(i)].algo);
  }
  return algorithms;
}

bool LibraryGemm::run(cudaStream_t stream, const GemmArgs& args, const cublasLtMatmulAlgo_t& algorithm) {
  const GemmWeights& w = args.weights;
  const float one = 1, kept = args.accumulate ? 1 : 0;
  const std::int64_t step = tokens_of_call(args);
  for (std::int64_t first = 0; first < args.tokens; first += step) {
    const std::int64_t tokens = std::min(step, args.tokens - first);
    const auto* x = static_cast<const std::byte*>(args.x) + first * w.columns * bits(w.dtype) / 8;
    auto* out = static_cast<std::byte*>(args.out) + first * w.rows * bits(args.out_type) / 8;
    const Description d(args, tokens);
    const cublasStatus_t status = cublasLtMatmul(handle_, d.product, &one, w.dense, d.weights, x, d.x, &kept, out, d.out, out, d.out, &algorithm,
                                                 workspace_.data(), workspace_.size(), stream);
    if (first == 0 && (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)) return false;
    check_library(status, "a product");
  }
  if (w.bias != nullptr && !has_bias_epilogue(args)) {
    add_bias(stream, static_cast<float*>(args.out), w.bias, w.dtype, args.tokens, w.rows);
  }
  return true;
}

}  // namespace keel::cuda
