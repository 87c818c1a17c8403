#include "kernels/embed/embed_cuda.h"

#include "kernels/cuda_test.h"

namespace keel::cuda {
namespace {

using EmbedCuda = CudaKernel;

TEST_F(EmbedCuda, CopiesTheTokensRows) {
  for (const std::int64_t width : {8, 896, 4096, 5120}) {
    constexpr std::int64_t kVocabulary = 1000, kRows = 77;
    const auto embedding = random_bits(DType::bf16, kVocabulary * width, 1);
    std::vector<std::int32_t> tokens(kRows);
    for (std::int64_t i = 0; i < kRows; ++i) tokens[i] = static_cast<std::int32_t>(random_u64(2, i) % kVocabulary);
    tokens[0] = 0, tokens[1] = kVocabulary - 1;
    const auto embedding_there = on_device(embedding);
    const auto tokens_there = on_device(tokens);
    auto out_there = on_device(std::vector<std::uint16_t>(kRows * width, 0x7fff));
    const Stream stream;
    embed(stream, {.dtype = DType::bf16, .embedding = embedding_there.data(), .tokens = tokens_there.data(), .out = out_there.data(), .rows = kRows, .width = width});
    stream.synchronize();
    const auto out = on_host(out_there);
    for (std::int64_t i = 0; i < kRows * width; ++i) ASSERT_EQ(out[i], embedding[tokens[i / width] * width + i % width]) << width << " " << i;
  }
}

}  // namespace
}  // namespace keel::cuda
