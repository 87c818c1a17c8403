// A batch for decode attention on CUDA with its exact answer, for the test.
//
// The answer is two-pass attention in f64 from the pages' raw bytes by an indexer of its own, so that neither the layout's
// address functions nor the kernel's can hide a fault of the other.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "device/cuda.h"
#include "kernels/paged_attention/decode_cuda.h"
#include "kernels/paged_attention/decode_cuda_shape.h"

namespace keel::cuda {

struct DecodeShape {
  DType dtype = DType::f16;
  KvFormat format{DType::f16, DType::e4m3};
  int dim = 128, kv_heads = 2, group = 4, rows = 1;
  std::vector<std::int32_t> contexts;
  std::uint64_t seed = 1;
  bool share_pages = false;  // all sequences begin with the first one's pages
};

inline std::string describe(const DecodeShape& shape) {
  return "q=" + std::string(name(shape.dtype)) + " " + to_string(shape.format) + " dim " + std::to_string(shape.dim) + " heads " +
         std::to_string(shape.kv_heads * shape.group) + ":" + std::to_string(shape.kv_heads) + " rows " + std::to_string(shape.rows) +
         " seed " + std::to_string(shape.seed);
}

template <class Body>
void in_parallel(std::int64_t count, const Body& body) {
  const int threads = static_cast<int>(std::min<std::int64_t>(count, std::max(1u, std::thread::hardware_concurrency())));
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::int64_t i = thread; i < count; i += threads) body(i);
    });
  }
  for (std::thread& thread : running) thread.join();
}

// Near normal, sd 1: four uniform numbers' sum.
inline float random_normal(std::uint64_t seed, std::uint64_t counter) {
  const std::uint64_t x = random_u64(seed, counter);
  const double sum = static_cast<double>(x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
  return static_cast<float>((sum / 65536 - 2) * 1.7320508);
}

inline std::uint16_t to_bits16(DType type, float x) {
  return type == DType::bf16 ? static_cast<std::uint16_t>(to_bf16(x)) : static_cast<std::uint16_t>(to_half(x));
}
inline double from_bits16(DType type, std::uint16_t x) {
  return type == DType::bf16 ? to_float(static_cast<Bf16>(x)) : to_float(static_cast<Half>(x));
}

struct ExactOutput {
  double value;
  double bound;  // of |error|
};

class DecodeScene {
 public:
  explicit DecodeScene(DecodeShape shape)
      : shape_(std::move(shape)),
        layout_(shape_.format, {1, shape_.kv_heads, shape_.dim, 16}, PageOrder::cuda),
        contexts_(shape_.contexts),
        heads_(shape_.kv_heads * shape_.group),
        rows_(static_cast<std::int64_t>(shape_.contexts.size()) * shape_.rows),
        q_stride_((heads_ + 2 * shape_.kv_heads) * shape_.dim),
        out_stride_(heads_ * shape_.dim + 8) {
    fill_tables();
    keys_.assign(pages_ * layout_.key_page_bytes(), 0xff);      // NaN in every float type
    values_.assign(pages_ * layout_.value_page_bytes(), 0xff);
    in_parallel(static_cast<std::int64_t>(contexts_.size()), [&](std::int64_t sequence) {
      if (shape_.share_pages && sequence > 0) return;
      fill_sequence(sequence);
    });
    if (shape_.share_pages) {
      for (std::size_t sequence = 1; sequence < contexts_.size(); ++sequence) fill_sequence(sequence);
    }
    q_.resize(rows_ * q_stride_);
    for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = to_bits16(shape_.dtype, random_normal(shape_.seed + 1, i));
    for (int head = 0; head < shape_.kv_heads; ++head) {
      key_scales_.push_back(bits(shape_.format.key) == 8 ? 0.5f + 0.25f * head : 1.0f);
      value_scales_.push_back(bits(shape_.format.value) == 8 ? 1.5f - 0.5f * head : 1.0f);
    }
    softmax_scale_ = static_cast<float>(1 / std::sqrt(shape_.dim));
  }

  std::int32_t& page_of(std::int64_t sequence, std::int64_t index) { return table_[sequence * table_stride_ + index]; }

  // ---- the test's own indexer ----

  std::uint8_t* key_row(std::int64_t page, int head, int slot) {
    return keys_.data() + ((page * shape_.kv_heads + head) * 16 + slot) * row_bytes(shape_.format.key);
  }
  std::uint8_t* value_row(std::int64_t page, int head, int slot) {
    return values_.data() + page * layout_.value_page_bytes() + (head * 16 + slot) * row_bytes(shape_.format.value);
  }
  std::uint8_t* value_parameters(std::int64_t page, int head, int slot) {
    return values_.data() + page * layout_.value_page_bytes() + shape_.kv_heads * 16 * row_bytes(shape_.format.value) +
           (head * 16 + slot) * 4;
  }
  int row_bytes(DType type) const { return shape_.dim * bits(type) / 8; }
  // Byte of a row where dimension `dim` begins: 16-byte chunks trade places within groups of eight, or of as many as there are.
  int byte_of(DType type, int slot, int dim) const {
    const int group = std::min(8, row_bytes(type) / 16);
    const int at = dim * bits(type) / 8;
    const int lines = 8 / group;  // slots that share 128 bytes
    return ((at / 16) ^ (slot / lines % group)) * 16 + at % 16;
  }

  void set_key(std::int64_t page, int head, int slot, int dim, float x) { store(shape_.format.key, key_row(page, head, slot), slot, dim, x); }
  void set_value(std::int64_t page, int head, int slot, int dim, float x) { store(shape_.format.value, value_row(page, head, slot), slot, dim, x); }

  // Every output of every row, [rows][heads][dim].
  std::vector<ExactOutput> exact(bool interleaved_groups = false) {
    std::vector<ExactOutput> answer(rows_ * heads_ * shape_.dim);
    in_parallel(static_cast<std::int64_t>(contexts_.size()) * shape_.kv_heads, [&](std::int64_t at) {
      exact_unit(at / shape_.kv_heads, static_cast<int>(at % shape_.kv_heads), interleaved_groups, answer);
    });
    return answer;
  }

  // "" or what is wrong.
  std::string compare(const std::vector<std::uint16_t>& out, const std::vector<ExactOutput>& answer) const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t i = 0; i < heads_ * shape_.dim; ++i) {
        const ExactOutput& exact = answer[row * heads_ * shape_.dim + i];
        const double found = from_bits16(shape_.dtype, out[row * out_stride_ + i]);
        if (!(std::abs(found - exact.value) <= exact.bound)) {
          return "row " + std::to_string(row) + " of context " + std::to_string(contexts_[row / shape_.rows]) + " head " +
                 std::to_string(i / shape_.dim) + " dim " + std::to_string(i % shape_.dim) + ": " + std::to_string(found) + ", exact " +
                 std::to_string(exact.value) + " +- " + std::to_string(exact.bound);
        }
      }
      for (std::int64_t i = heads_ * shape_.dim; i < out_stride_; ++i) {
        if (out[row * out_stride_ + i] != 0xffff) return "row " + std::to_string(row) + " was written past its heads";
      }
    }
    return "";
  }
  // Largest error in units of its bound.
  double tightness(const std::vector<std::uint16_t>& out, const std::vector<ExactOutput>& answer) const {
    double largest = 0;
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t i = 0; i < heads_ * shape_.dim; ++i) {
        const ExactOutput& exact = answer[row * heads_ * shape_.dim + i];
        if (exact.bound > 0) {
          largest = std::max(largest, std::abs(from_bits16(shape_.dtype, out[row * out_stride_ + i]) - exact.value) / exact.bound);
        }
      }
    }
    return largest;
  }

  DecodeShape shape_;
  KvLayout layout_;
  std::vector<std::int32_t> contexts_;
  std::int64_t heads_, rows_, q_stride_, out_stride_, table_stride_ = 0, pages_ = 0;
  std::vector<std::int32_t> table_;  // entries past a context are far out of the pool
  std::vector<std::uint8_t> keys_, values_;
  std::vector<std::uint16_t> q_;
  std::vector<float> key_scales_, value_scales_;
  float softmax_scale_;

 private:
  void store(DType type, std::uint8_t* row, int slot, int dim, float x) {
    std::uint8_t* to = row + byte_of(type, slot, dim);
    if (bits(type) == 16) {
      const std::uint16_t two = to_bits16(type, x);
      std::memcpy(to, &two, 2);
    } else if (type == DType::e4m3) {
      *to = static_cast<std::uint8_t>(to_e4m3(x));
    } else {
      const int shift = dim % 2 * 4;
      *to = static_cast<std::uint8_t>((*to & ~(15 << shift)) | (static_cast<int>(x) << shift));
    }
  }

  double load(DType type, const std::uint8_t* row, int slot, int dim) const {
    const std::uint8_t* from = row + byte_of(type, slot, dim);
    if (bits(type) == 16) {
      std::uint16_t two;
      std::memcpy(&two, from, 2);
      return from_bits16(type, two);
    }
    if (type == DType::e4m3) return to_float(static_cast<E4m3>(*from));
    return *from >> dim % 2 * 4 & 15;
  }

  // Pages in a shuffled order, some never used.
  void fill_tables() {
    std::vector<std::int64_t> wanted;
    for (const std::int32_t context : contexts_) {
      wanted.push_back((context + 15) / 16);
      table_stride_ = std::max(table_stride_, wanted.back() + 2);
      pages_ += wanted.back();
    }
    pages_ += 3;
    std::vector<std::int32_t> order(pages_);
    for (std::int64_t i = 0; i < pages_; ++i) order[i] = static_cast<std::int32_t>(i);
    for (std::int64_t i = pages_ - 1; i > 0; --i) std::swap(order[i], order[random_u64(shape_.seed, i) % (i + 1)]);
    table_.assign(contexts_.size() * table_stride_, 0x7ffffff0);
    std::int64_t next = 0;
    for (std::size_t sequence = 0; sequence < contexts_.size(); ++sequence) {
      for (std::int64_t i = 0; i < wanted[sequence]; ++i) {
        const bool whole = (i + 1) * 16 <= contexts_[sequence];
        const bool shared = shape_.share_pages && sequence > 0 && whole && (i + 1) * 16 <= contexts_[0];
        page_of(sequence, i) = shared ? page_of(0, i) : order[next++];
      }
    }
  }

  void fill_sequence(std::int64_t sequence) {
    for (std::int64_t token = 0; token < contexts_[sequence]; ++token) {
      const std::int64_t page = page_of(sequence, token / 16);
      const int slot = static_cast<int>(token % 16);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::uint64_t at = ((page * 16 + slot) * shape_.kv_heads + head) * shape_.dim;
        for (int dim = 0; dim < shape_.dim; ++dim) {
          set_key(page, head, slot, dim, random_normal(shape_.seed + 2, at + dim));
          const float x = random_normal(shape_.seed + 3, at + dim);
          set_value(page, head, slot, dim, shape_.format.value == DType::u4 ? std::min(15.0f, std::max(0.0f, std::round(7.5f + 2.5f * x))) : x);
        }
        if (shape_.format.value == DType::u4) {
          const float scale = 0.01f + static_cast<float>(random_unit(shape_.seed + 4, at));
          const std::uint16_t two[2] = {to_bits16(DType::f16, scale), to_bits16(DType::f16, -7 * scale)};
          std::memcpy(value_parameters(page, head, slot), two, 4);
        }
      }
    }
  }

  void exact_unit(std::int64_t sequence, int kv_head, bool interleaved_groups, std::vector<ExactOutput>& answer) {
    const int dim = shape_.dim;
    const std::int64_t context = contexts_[sequence];
    std::vector<double> keys(context * dim), values(context * dim), magnitudes(context * dim);
    for (std::int64_t token = 0; token < context; ++token) {
      const std::int64_t page = page_of(sequence, token / 16);
      const int slot = static_cast<int>(token % 16);
      double scale = value_scales_[kv_head], zero = 0;
      if (shape_.format.value == DType::u4) {
        std::uint16_t two[2];
        std::memcpy(two, value_parameters(page, kv_head, slot), 4);
        scale = from_bits16(DType::f16, two[0]);
        zero = from_bits16(DType::f16, two[1]);
      }
      for (int d = 0; d < dim; ++d) {
        keys[token * dim + d] = load(shape_.format.key, key_row(page, kv_head, slot), slot, d) * key_scales_[kv_head];
        const double stored = load(shape_.format.value, value_row(page, kv_head, slot), slot, d) * scale;
        values[token * dim + d] = zero + stored;
        magnitudes[token * dim + d] = std::abs(zero) + std::abs(stored);
      }
    }
    for (int column = 0; column < shape_.rows * shape_.group; ++column) {
      const int row = column / shape_.group;
      const int head = interleaved_groups ? column % shape_.group * shape_.kv_heads + kv_head : kv_head * shape_.group + column % shape_.group;
      const std::int64_t global_row = sequence * shape_.rows + row;
      const std::int64_t seen = std::max<std::int64_t>(0, context - shape_.rows + row + 1);
      std::vector<double> weights(seen);
      double largest = -INFINITY, magnitude = 0, sum = 0;
      for (std::int64_t token = 0; token < seen; ++token) {
        double score = 0, terms = 0;
        for (int d = 0; d < dim; ++d) {
          const double term = from_bits16(shape_.dtype, q_[global_row * q_stride_ + head * dim + d]) * keys[token * dim + d];
          score += term;
          terms += std::abs(term);
        }
        weights[token] = score * softmax_scale_;
        largest = std::max(largest, weights[token]);
        magnitude = std::max(magnitude, terms * softmax_scale_);
      }
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      for (int d = 0; d < dim; ++d) {
        double value = 0, absolute = 0;
        for (std::int64_t token = 0; token < seen; ++token) {
          value += weights[token] * values[token * dim + d];
          absolute += weights[token] * magnitudes[token * dim + d];
        }
        if (seen > 0) {
          value /= sum;
          absolute /= sum;
        }
        // Weights are two 16-bit parts (2^-18 for bf16, less for f16); scores are f32 sums, whose error the exponential
        // makes relative, in the numerator and in the denominator; last, the output's own rounding.
        const double rounding = shape_.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
        const double bound = (0x1p-17 + 0x1p-19 * magnitude) * absolute + rounding * std::abs(value) + (absolute > 0 ? 0x1p-25 : 0);
        answer[(global_row * heads_ + head) * dim + d] = {value, bound};
      }
    }
  }
};

// The scene on the device.
class DeviceScene {
 public:
  explicit DeviceScene(const DecodeScene& scene)
      : keys_(scene.keys_.size(), "keys"),
        values_(scene.values_.size(), "values"),
        q_(scene.q_.size(), "q"),
        scene_(scene),
        out_(scene.rows_ * scene.out_stride_, "out"),
        table_(scene.table_.size(), "page table"),
        contexts_(scene.contexts_.size(), "contexts"),
        key_scales_(scene.key_scales_.size(), "scales"),
        value_scales_(scene.value_scales_.size(), "scales"),
        workspace_(decode_attention_workspace(scene.layout_, scene.heads_, static_cast<std::int64_t>(scene.contexts_.size()), scene.shape_.rows),
                   "workspace") {
    copy_to_device<std::uint8_t>(stream_, keys_.data(), scene.keys_.data(), scene.keys_.size());
    copy_to_device<std::uint8_t>(stream_, values_.data(), scene.values_.data(), scene.values_.size());
    copy_to_device(stream_, q_.data(), scene.q_.data(), scene.q_.size());
    copy_to_device(stream_, key_scales_.data(), scene.key_scales_.data(), scene.key_scales_.size());
    copy_to_device(stream_, value_scales_.data(), scene.value_scales_.data(), scene.value_scales_.size());
    set_tables(scene.table_, scene.contexts_);
    poison();
  }

  void set_tables(const std::vector<std::int32_t>& table, const std::vector<std::int32_t>& contexts) {
    copy_to_device(stream_, table_.data(), table.data(), table.size());
    copy_to_device(stream_, contexts_.data(), contexts.data(), contexts.size());
    stream_.synchronize();
  }
  void poison() {
    check(cudaMemsetAsync(out_.data(), 0xff, out_.bytes(), stream_), "poison");
    check(cudaMemsetAsync(workspace_.data(), 0xff, workspace_.bytes(), stream_), "poison");
  }

  DecodeAttentionArgs args(bool early = false) {
    return {.dtype = scene_.shape_.dtype,
            .q = q_.data(),
            .q_stride = scene_.q_stride_,
            .out = out_.data(),
            .out_stride = scene_.out_stride_,
            .heads = scene_.heads_,
            .softmax_scale = scene_.softmax_scale_,
            .kv = {&scene_.layout_, reinterpret_cast<std::byte*>(keys_.data()), reinterpret_cast<std::byte*>(values_.data()),
                   key_scales_.data(), value_scales_.data()},
            .page_table = table_.data(),
            .page_table_stride = scene_.table_stride_,
            .contexts = contexts_.data(),
            .sequences = static_cast<std::int64_t>(scene_.contexts_.size()),
            .rows = scene_.shape_.rows,
            .early = early,
            .workspace = workspace_.data()};
  }
  void launch() {
    decode_attention_plan(stream_, args());
    decode_attention(stream_, args());
  }
  std::vector<std::uint16_t> read() {
    std::vector<std::uint16_t> out(out_.size());
    copy_to_host(stream_, out.data(), out_.data(), out.size());
    stream_.synchronize();
    return out;
  }
  std::vector<std::uint16_t> run() {
    launch();
    return read();
  }

  // A fault of the plan: units that several CTAs share are merged without their last CTA's part. False where there is none.
  bool drop_splits() {
    const DecodeShape& shape = scene_.shape_;
    int ctas = 0;
    check(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    const DecodeConfig config = decode_config(shape.format.key, shape.format.value, shape.dim, shape.rows * shape.group);
    ctas *= config.tuning.ctas_per_sm;
    const DecodeWorkspace plan(workspace_.data(), static_cast<std::int64_t>(scene_.contexts_.size()), ctas, config);
    std::vector<CtaCuts> cuts(static_cast<std::size_t>(ctas));
    copy_to_host(stream_, cuts.data(), plan.cuts, cuts.size());
    stream_.synchronize();
    bool dropped = false;
    for (CtaCuts& cut : cuts) {
      for (std::int32_t* parts : {&cut.head_parts, &cut.tail_parts}) {
        if (*parts > 1) --*parts, dropped = true;
      }
    }
    copy_to_device(stream_, plan.cuts, cuts.data(), cuts.size());
    stream_.synchronize();
    return dropped;
  }

  Stream stream_;
  DeviceBuffer<std::uint8_t> keys_, values_;
  DeviceBuffer<std::uint16_t> q_;

 private:
  const DecodeScene& scene_;
  DeviceBuffer<std::uint16_t> out_;
  DeviceBuffer<std::int32_t> table_, contexts_;
  DeviceBuffer<float> key_scales_, value_scales_;
  DeviceBuffer<std::uint8_t> workspace_;
};

}  // namespace keel::cuda
