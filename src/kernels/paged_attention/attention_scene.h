// A cache filled with random numbers, sequences over it, and the exact answer: what the attention tests and bench share.
// Reads pages by its own arithmetic, never through kv/layout.h's addresses.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "kernels/paged_attention/paged_attention.h"

namespace keel {

struct SequenceShape {
  std::int64_t rows;
  std::int64_t context;
};

struct SceneShape {
  KvFormat format{DType::f16, DType::f16};
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 16;
  std::vector<SequenceShape> sequences;
  std::uint64_t seed = 1;
  bool share_first_pages = false;  // all sequences begin with the first one's full pages
  float query_size = 1.0f;
};

class AttentionScene {
 public:
  explicit AttentionScene(const SceneShape& shape)
      : shape_(shape),
        layout_(shape.format, {1, shape.kv_heads, shape.head_dim, shape.page_size}) {
    std::int64_t pages = 0;
    for (const auto& s : shape.sequences) pages += pages_for(s.context);
    pages_ = pages + 1;
    keys_.resize(pages_ * key_page_bytes());
    values_.resize(pages_ * value_page_bytes());
    key_scales_.assign(shape.kv_heads, 1.0f);
    value_scales_.assign(shape.kv_heads, 1.0f);
    for (std::int64_t g = 0; g < shape.kv_heads; ++g) {
      if (shape.format.key == DType::e4m3) key_scales_[g] = 0.01f * static_cast<float>(g + 1);
      if (shape.format.value == DType::e4m3) value_scales_[g] = 0.013f * static_cast<float>(g + 1);
    }
    fill_pages();
    assign_pages();
    poison_unused_slots();
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < shape.sequences.size(); ++i) {
      sequences_.push_back(
          {rows, shape.sequences[i].rows, shape.sequences[i].context, tables_[i].data()});
      rows += shape.sequences[i].rows;
    }
    rows_ = rows;
    q_.resize(rows * shape.heads * shape.head_dim);
    for (float& x : q_) x = normal() * shape.query_size;
  }

  KvLayerView view() const {
    return {&layout_,
            const_cast<std::byte*>(keys_.data()),
            const_cast<std::byte*>(values_.data()),
            key_scales_.data(),
            value_scales_.data()};
  }

  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  // The kernel's answer, with output and workspace full of NaN before.
  std::vector<float> run(const Stream& stream) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    out_.assign(q_.size(), nan);
    const std::int64_t floats = paged_attention_workspace(
        layout_, shape_.heads, rows_, stream.workers->threads());
    workspace_.assign(floats, nan);
    call(stream);
    return out_;
  }

  // Only the call, into memory that run() prepared: for timing.
  void call(const Stream& stream) {
    paged_attention(stream,
                    {.q = q_.data(),
                     .out = out_.data(),
                     .heads = shape_.heads,
                     .softmax_scale = softmax_scale(),
                     .kv = view(),
                     .sequences = sequences_,
                     .workspace = workspace_});
  }

  struct Exact {
    std::vector<double> out;
    std::vector<double> bound;  // of |kernel - exact|
  };
  Exact exact() const {
    Exact answer;
    answer.out.resize(q_.size());
    answer.bound.resize(q_.size());
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    for (const AttentionSequence& s : sequences_) {
      for (std::int64_t g = 0; g < shape_.kv_heads; ++g) {
        const std::vector<double> keys = read_head(s, g, true);
        const std::vector<double> values = read_head(s, g, false);
        for (std::int64_t i = 0; i < s.rows; ++i) {
          for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
            const std::int64_t at = ((s.first_row + i) * shape_.heads + h) * shape_.head_dim;
            exact_row(keys, values, s.context - s.rows + i + 1, at, answer);
          }
        }
      }
    }
    return answer;
  }

  std::int64_t key_page_bytes() const {
    return shape_.kv_heads * shape_.head_dim * shape_.page_size * bits(shape_.format.key) / 8;
  }
  std::int64_t value_page_bytes() const {
    const std::int64_t slots = shape_.kv_heads * shape_.page_size;
    return slots * shape_.head_dim * bits(shape_.format.value) / 8 +
           (shape_.format.value == DType::u4 ? slots * 4 : 0);
  }

  // Places in the pages, by the layout's description.
  std::byte* key_at(PageId page, std::int64_t head, std::int64_t slot, std::int64_t dim) {
    return keys_.data() + page * key_page_bytes() +
           ((head * shape_.head_dim + dim) * shape_.page_size + slot) * bits(shape_.format.key) / 8;
  }
  std::byte* value_at(PageId page, std::int64_t head, std::int64_t slot, std::int64_t dim) {
    return values_.data() + page * value_page_bytes() +
           ((head * shape_.page_size + slot) * shape_.head_dim + dim) * bits(shape_.format.value) / 8;
  }
  std::byte* parameters_at(PageId page, std::int64_t head, std::int64_t slot) {
    return values_.data() + page * value_page_bytes() +
           shape_.kv_heads * shape_.page_size * shape_.head_dim / 2 +
           (head * shape_.page_size + slot) * 4;
  }

  SceneShape shape_;
  KvLayout layout_;
  std::int64_t pages_;
  std::int64_t rows_ = 0;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<float> key_scales_;
  std::vector<float> value_scales_;
  std::vector<std::vector<PageId>> tables_;
  std::vector<AttentionSequence> sequences_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<float> workspace_;

 private:
  std::int64_t pages_for(std::int64_t tokens) const {
    return (tokens + shape_.page_size - 1) / shape_.page_size;
  }
  std::uint64_t random() { return random_u64(shape_.seed, counter_++); }
  float normal() {  // of variance 1, near enough: the sum of 4 uniforms
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random_unit(shape_.seed, counter_++);
    return static_cast<float>((sum - 2.0) * std::sqrt(3.0));
  }

  template <class T>
  static void put(std::byte* to, T bits) {
    std::memcpy(to, &bits, sizeof(bits));
  }
  template <class T>
  static T get(const std::byte* from) {
    T bits;
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
  }
  static void store(DType type, std::byte* to, float x) {
    switch (type) {
      case DType::f32: return put(to, x);
      case DType::f16: return put(to, to_half(x));
      case DType::bf16: return put(to, to_bf16(x));
      case DType::e4m3: return put(to, to_e4m3(x));
      case DType::u4: break;
    }
  }
  static double fetch(DType type, const std::byte* from) {
    switch (type) {
      case DType::f32: return get<float>(from);
      case DType::f16: return to_float(get<Half>(from));
      case DType::bf16: return to_float(get<Bf16>(from));
      case DType::e4m3: return to_float(get<E4m3>(from));
      case DType::u4: break;
    }
    return 0;
  }

  void fill_pages() {
    const bool u4 = shape_.format.value == DType::u4;
    for (PageId page = 0; page < pages_; ++page) {
      for (std::int64_t g = 0; g < shape_.kv_heads; ++g) {
        for (std::int64_t slot = 0; slot < shape_.page_size; ++slot) {
          for (std::int64_t dim = 0; dim < shape_.head_dim; ++dim) {
            store(shape_.format.key, key_at(page, g, slot, dim), normal() / key_scales_[g]);
            if (u4) {
              if (dim % 2 == 0) *value_at(page, g, slot, dim) = static_cast<std::byte>(random());
            } else {
              store(shape_.format.value, value_at(page, g, slot, dim), normal() / value_scales_[g]);
            }
          }
          if (u4) {
            put(parameters_at(page, g, slot), to_half(0.1f + 0.01f * std::abs(normal())));
            put(parameters_at(page, g, slot) + 2, to_half(-1.0f + 0.1f * normal()));
          }
        }
      }
    }
  }

  void assign_pages() {
    std::vector<PageId> order(pages_);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    std::size_t next = 0;
    for (const auto& s : shape_.sequences) {
      std::vector<PageId> table;
      for (std::int64_t i = 0; i < pages_for(s.context); ++i) {
        const bool shared = shape_.share_first_pages && !tables_.empty() &&
                            (i + 1) * shape_.page_size <= std::min(s.context, shape_.sequences[0].context);
        table.push_back(shared ? tables_[0][i] : order[next++]);
      }
      tables_.push_back(std::move(table));
    }
  }

  // Every byte of a slot that no sequence covers becomes 0xFF: NaN in each float type, and for u4's parameters.
  void poison_unused_slots() {
    std::vector<bool> used(pages_ * shape_.page_size, false);
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      for (std::int64_t t = 0; t < shape_.sequences[i].context; ++t) {
        used[tables_[i][t / shape_.page_size] * shape_.page_size + t % shape_.page_size] = true;
      }
    }
    for (PageId page = 0; page < pages_; ++page) {
      for (std::int64_t slot = 0; slot < shape_.page_size; ++slot) {
        if (used[page * shape_.page_size + slot]) continue;
        for (std::int64_t g = 0; g < shape_.kv_heads; ++g) {
          for (std::int64_t dim = 0; dim < shape_.head_dim; ++dim) {
            std::memset(key_at(page, g, slot, dim), 0xff, bits(shape_.format.key) / 8);
          }
          std::memset(value_at(page, g, slot, 0), 0xff, shape_.head_dim * bits(shape_.format.value) / 8);
          if (shape_.format.value == DType::u4) std::memset(parameters_at(page, g, slot), 0xff, 4);
        }
      }
    }
  }

  // [context][head_dim] of one head.
  std::vector<double> read_head(const AttentionSequence& s, std::int64_t g, bool keys) const {
    auto& self = const_cast<AttentionScene&>(*this);
    std::vector<double> all(s.context * shape_.head_dim);
    for (std::int64_t t = 0; t < s.context; ++t) {
      const PageId page = s.pages[t / shape_.page_size];
      const std::int64_t slot = t % shape_.page_size;
      for (std::int64_t dim = 0; dim < shape_.head_dim; ++dim) {
        double& x = all[t * shape_.head_dim + dim];
        if (keys) {
          x = fetch(shape_.format.key, self.key_at(page, g, slot, dim)) * key_scales_[g];
        } else if (shape_.format.value != DType::u4) {
          x = fetch(shape_.format.value, self.value_at(page, g, slot, dim)) * value_scales_[g];
        } else {
          const auto pair = static_cast<unsigned>(*self.value_at(page, g, slot, dim & ~1));
          const double scale = to_float(get<Half>(self.parameters_at(page, g, slot)));
          const double zero = to_float(get<Half>(self.parameters_at(page, g, slot) + 2));
          x = zero + scale * (dim % 2 == 0 ? pair & 15 : pair >> 4);
        }
      }
    }
    return all;
  }

  void exact_row(const std::vector<double>& keys,
                 const std::vector<double>& values,
                 std::int64_t visible,
                 std::int64_t at,
                 Exact& answer) const {
    const std::int64_t head_dim = shape_.head_dim;
    std::vector<double> p(visible);
    double max = -std::numeric_limits<double>::infinity();
    double magnitude = 0;  // largest Σ|q·k| · scale
    for (std::int64_t t = 0; t < visible; ++t) {
      double score = 0;
      double size = 0;
      for (std::int64_t dim = 0; dim < head_dim; ++dim) {
        const double product = static_cast<double>(q_[at + dim]) * keys[t * head_dim + dim];
        score += product;
        size += std::abs(product);
      }
      p[t] = score * softmax_scale();
      max = std::max(max, p[t]);
      magnitude = std::max(magnitude, size * softmax_scale());
    }
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - max);
    std::vector<double> sizes(head_dim);
    for (std::int64_t t = 0; t < visible; ++t) {
      for (std::int64_t dim = 0; dim < head_dim; ++dim) {
        answer.out[at + dim] += p[t] / sum * values[t * head_dim + dim];
        sizes[dim] += p[t] / sum * std::abs(values[t * head_dim + dim]);
      }
    }
    // The header's bound, plus what a rounding of scores does to p: they are sums of head_dim f32 products.
    const double relative = 0x1p-18 + magnitude * 0x1p-20;
    for (std::int64_t dim = 0; dim < head_dim; ++dim) answer.bound[at + dim] = relative * sizes[dim] + 0x1p-100;
  }

  std::uint64_t counter_ = 0;
};

// Empty when every element is within its bound; else says where it is not first.
inline std::string compare(const std::vector<float>& out, const AttentionScene::Exact& exact) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!(std::abs(out[i] - exact.out[i]) <= exact.bound[i])) {
      return fmt::format("element {}: {} where {} ± {} was due", i, out[i], exact.out[i], exact.bound[i]);
    }
  }
  return {};
}

}  // namespace keel
