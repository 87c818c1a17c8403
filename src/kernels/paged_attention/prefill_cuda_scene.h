// Random pages, queries and sequences on the device, and the exact answer for chosen rows: what the prefill test runs.
// Reads pages by its own arithmetic, never through kv/layout.h's addresses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "device/cuda.h"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kernels/paged_attention/prefill_cuda.h"

namespace keel::cuda {

struct PrefillShape {
  DType dtype = DType::f16;
  KvFormat format{DType::f16, DType::f16};
  std::int64_t group = 4, kv_heads = 2, head_dim = 128;
  std::vector<std::pair<std::int64_t, std::int64_t>> sequences;  // rows, context
  std::uint64_t seed = 1;
  float query_size = 1;
  bool written = false;            // k and v are random, the pages what rope_write makes of them: for sequences with nothing cached before
  std::int64_t nan_sequence = -1;  // this one's keys and values are NaN; it is not judged
};

// Whether the values that multiply are the stored ones times their scale, or those rounded to the model's type.
enum class CacheValues { exact, rounded };

class PrefillScene {
 public:
  explicit PrefillScene(const PrefillShape& shape)
      : shape_(shape),
        heads_(shape.group * shape.kv_heads),
        stride_((heads_ + 2 * shape.kv_heads) * shape.head_dim),
        out_stride_(heads_ * shape.head_dim + 8),
        layout_(shape.format, {1, shape.kv_heads, shape.head_dim, 16}, PageOrder::cuda),
        seed_(mix64(shape.seed)) {
    std::int64_t pages = 0;
    for (auto [rows, context] : shape.sequences) {
      pages += (context + 15) / 16;
      table_stride_ = std::max(table_stride_, (context + 15) / 16);
    }
    pages_ = pages + 1;  // and one that no sequence has
    fill_pages();
    assign_pages();
    fill_rows();
    upload();
    if (shape.written) write_pages();
  }

  std::int64_t heads() const { return heads_; }
  const KvLayout& layout() const { return layout_; }
  const PrefillShape& shape() const { return shape_; }
  std::vector<PrefillSequence>& sequences() { return sequences_; }
  std::vector<std::int32_t>& table() { return table_; }
  std::int32_t nobodys_page() const { return nobodys_page_; }  // all NaN
  void upload_table() { copy(device_table_, table_.data(), table_.size()); }

  PrefillAttentionArgs args() {
    const auto* rows = reinterpret_cast<const std::uint16_t*>(device_rows_.data());
    return {.dtype = shape_.dtype,
            .q = rows,
            .q_stride = stride_,
            .out = device_out_.data(),
            .out_stride = out_stride_,
            .heads = heads_,
            .softmax_scale = softmax_scale(),
            .kv = {&layout_, device_keys_.data(), device_values_.data(), device_key_scales_.data(), device_value_scales_.data()},
            .page_table = device_table_.data(),
            .page_table_stride = table_stride_,
            .sequences = sequences_,
            .k = rows + heads_ * shape_.head_dim,
            .v = rows + (heads_ + shape_.kv_heads) * shape_.head_dim,
            .kv_stride = stride_};
  }
  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  // The rows of q, k and v, `stride` elements apart; what lies between is NaN.
  DeviceBuffer<std::uint16_t> rows_apart(std::int64_t stride) {
    DeviceBuffer<std::uint16_t> apart((rows_ + kPrefillSpareRows) * stride, "rows apart");
    check(cudaMemset(apart.data(), 0xff, apart.bytes()), "rows apart");
    check(cudaMemcpy2D(apart.data(), stride * 2, device_rows_.data(), stride_ * 2, stride_ * 2, rows_, cudaMemcpyDeviceToDevice), "rows apart");
    return apart;
  }

  // The rows, where their spare ones end at `end`.
  const std::uint16_t* rows_before(std::byte* end) {
    const std::size_t rows_bytes = (rows_ - 1) * stride_ * 2, spare_bytes = kPrefillSpareRows * stride_ * 2;  // the last is nobody's
    std::byte* rows = end - rows_bytes - spare_bytes;
    check(cudaMemcpy(rows, device_rows_.data(), rows_bytes + spare_bytes, cudaMemcpyDeviceToDevice), "rows before an end");
    return reinterpret_cast<const std::uint16_t*>(rows);
  }

  // The same pages in a pool of `pages`, a thousand or more apart, the last of them last; nothing else of it is written.
  struct FarPages {
    DeviceBuffer<std::byte> keys, values;
    DeviceBuffer<std::int32_t> table;
    std::int64_t last_page;
  };
  FarPages pages_far_apart(std::int64_t pages) {
    const std::int64_t apart = pages / pages_;
    FarPages far{DeviceBuffer<std::byte>(pages * key_page_bytes(), "far keys"), DeviceBuffer<std::byte>(pages * value_page_bytes(), "far values"),
                 DeviceBuffer<std::int32_t>(table_.size(), "a page table"), pages - 1};
    std::vector<std::int32_t> table;
    const auto place = [&](std::int64_t page) { return pages - 1 - page * apart; };
    for (std::int64_t page = 0; page < pages_; ++page) {
      check(cudaMemcpy(far.keys.data() + place(page) * key_page_bytes(), device_keys_.data() + page * key_page_bytes(), key_page_bytes(), cudaMemcpyDeviceToDevice), "a far page");
      check(cudaMemcpy(far.values.data() + place(page) * value_page_bytes(), device_values_.data() + page * value_page_bytes(), value_page_bytes(), cudaMemcpyDeviceToDevice), "a far page");
    }
    for (const std::int32_t page : table_) table.push_back(page < 0 ? page : static_cast<std::int32_t>(place(page)));
    copy(far.table, table.data(), table.size());
    return far;
  }

  // What `call` writes, over an output full of a NaN that no kernel makes.
  template <class Call>
  std::vector<std::uint16_t> run(Call&& call) {
    std::vector<std::uint16_t> out(rows_ * out_stride_, kPoison);
    copy(device_out_, out.data(), out.size());
    call();
    check(cudaDeviceSynchronize(), "the call under test");
    check(cudaMemcpy(out.data(), device_out_.data(), out.size() * 2, cudaMemcpyDeviceToHost), "the output");
    return out;
  }

  struct Verdict {
    std::int64_t wrong = 0;       // sampled elements past their bound
    std::int64_t unwritten = 0;   // elements of the sequences' rows that are NaN
    std::int64_t overwritten = 0; // elements of other rows, or past a row's heads, that changed
    double worst = 0;             // error / bound
    std::string where;
  };
  // Of `out` against exact arithmetic, one head a row, on all rows of short sequences and some of each other. `p_unit`: the roundoff of a probability.
  Verdict judge(const std::vector<std::uint16_t>& out, CacheValues values, double p_unit, bool interleaved_heads = false) {
    Verdict verdict;
    std::vector<char> ours(out.size(), 0);
    for (const PrefillSequence& s : sequences_) {
      for (std::int64_t i = 0; i < s.rows; ++i) {
        for (std::int64_t e = 0; e < heads_ * shape_.head_dim; ++e) {
          const std::int64_t at = (s.first_row + i) * out_stride_ + e;
          ours[at] = 1;
          verdict.unwritten += is_judged(s) && std::isnan(number(out[at]));
        }
      }
    }
    for (std::size_t at = 0; at < out.size(); ++at) verdict.overwritten += !ours[at] && out[at] != kPoison;
    std::uint64_t draw = 0;
    for (const PrefillSequence& s : sequences_) {
      if (!is_judged(s)) continue;
      std::vector<std::int64_t> rows = {0, s.rows - 1, static_cast<std::int64_t>(random_u64(seed_, draw++) % s.rows)};
      if (s.context <= kJudgedWhole) {
        rows.resize(s.rows);
        std::iota(rows.begin(), rows.end(), 0);
      }
      std::map<std::int64_t, CacheHead> heads;  // by KV head
      for (const std::int64_t row : rows) {
        const std::int64_t head = random_u64(seed_, 1000 + draw++) % heads_, g = interleaved_heads ? head % shape_.kv_heads : head / shape_.group;
        if (!heads.contains(g)) heads[g] = read_head(s, g, values);
        judge_row(out, s, row, head, heads[g], p_unit, values == CacheValues::exact && shape_.format.value == DType::u4, verdict);
      }
    }
    return verdict;
  }

  double unit() const { return shape_.dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

 private:
  static constexpr std::uint16_t kPoison = 0x7fa5;  // NaN in both types
  static constexpr std::int64_t kJudgedWhole = 129;

  bool is_judged(const PrefillSequence& s) const { return s.table_row != shape_.nan_sequence; }

  double number(std::uint16_t bits) const {
    return shape_.dtype == DType::f16 ? to_float(Half(bits)) : to_float(Bf16(bits));
  }
  std::uint16_t rounded(float value) const {
    return shape_.dtype == DType::f16 ? static_cast<std::uint16_t>(to_half(value)) : static_cast<std::uint16_t>(to_bf16(value));
  }

  // A random number of the model's type, of size 1/4 to 2.
  std::uint16_t random_16(std::uint64_t r) const {
    if (shape_.dtype == DType::f16) return static_cast<std::uint16_t>((r & 0x83ff) | (13 + (r >> 20) % 3) << 10);
    return static_cast<std::uint16_t>((r & 0x807f) | (125 + (r >> 20) % 3) << 7);
  }

  void fill(std::vector<std::byte>& storage, std::int64_t bytes, DType type, std::uint64_t salt) {
    for (std::int64_t at = 0; at + 2 <= bytes; at += 2) {
      const std::uint64_t r = random_u64(seed_ ^ salt, at);
      std::uint16_t two = static_cast<std::uint16_t>(r);
      if (bits(type) == 16) {
        two = random_16(r);
      } else if (type == DType::e4m3) {  // no NaN
        if ((two & 0x7f) == 0x7f) two ^= 0x10;
        if ((two & 0x7f00) == 0x7f00) two ^= 0x1000;
      }
      std::memcpy(storage.data() + at, &two, 2);
    }
  }

  void fill_pages() {
    const auto [key, value] = shape_.format;
    const std::int64_t slots = pages_ * shape_.kv_heads * 16;
    keys_.resize(slots * row_bytes(key));
    values_.resize(slots * row_bytes(value) + (value == DType::u4 ? slots * 4 : 0));
    fill(keys_, static_cast<std::int64_t>(keys_.size()), key, 11);
    fill(values_, static_cast<std::int64_t>(values_.size()), value, 13);
    key_scales_.assign(shape_.kv_heads, 1.0f);
    value_scales_.assign(shape_.kv_heads, 1.0f);
    for (std::int64_t g = 0; g < shape_.kv_heads; ++g) {
      if (key == DType::e4m3) key_scales_[g] = 0.011f * static_cast<float>(g + 1);
      if (value == DType::e4m3) value_scales_[g] = 0.0073f * static_cast<float>(g + 1);
    }
    if (value != DType::u4) return;
    for (std::int64_t page = 0; page < pages_; ++page) {
      for (std::int64_t at = 0; at < shape_.kv_heads * 16; ++at) {
        const std::uint64_t counter = page * 1'000'000 + at;
        const std::uint16_t two[2] = {
            static_cast<std::uint16_t>(to_half(static_cast<float>(0.05 + 0.1 * random_unit(seed_ ^ 17, counter)))),
            static_cast<std::uint16_t>(to_half(static_cast<float>(-1.5 * random_unit(seed_ ^ 19, counter))))};
        std::memcpy(values_.data() + page * value_page_bytes() + shape_.kv_heads * 16 * row_bytes(value) + at * 4, two, 4);
      }
    }
  }

  // Shuffled pages; slots past a context, and the page of nobody, get NaN in every type.
  void assign_pages() {
    std::vector<std::int32_t> order(pages_);
    for (std::int64_t i = 0; i < pages_; ++i) order[i] = static_cast<std::int32_t>(i);
    for (std::int64_t i = pages_ - 1; i > 0; --i) std::swap(order[i], order[random_u64(seed_ ^ 23, i) % (i + 1)]);
    table_.assign(shape_.sequences.size() * table_stride_, -1);  // past the context: never to be read
    std::int64_t next = 0, row = 1;                              // row 0 is nobody's
    for (std::size_t i = 0; i < shape_.sequences.size(); ++i) {
      const auto [rows, context] = shape_.sequences[i];
      const std::int64_t count = (context + 15) / 16;
      for (std::int64_t page = 0; page < count; ++page) table_[i * table_stride_ + page] = order[next++];
      for (std::int64_t slot = context; slot < count * 16; ++slot) poison(table_[i * table_stride_ + slot / 16], slot % 16);
      sequences_.push_back({row, rows, context, static_cast<std::int64_t>(i)});
      row += rows + 1;  // a row of nobody between
    }
    nobodys_page_ = order[next];
    for (std::int64_t slot = 0; slot < 16; ++slot) poison(nobodys_page_, slot);
    if (shape_.nan_sequence >= 0) std::fill_n(table_.begin() + shape_.nan_sequence * table_stride_, (shape_.sequences[shape_.nan_sequence].second + 15) / 16, nobodys_page_);
    rows_ = row;
  }

  void poison(std::int32_t page, std::int64_t slot) {
    for (std::int64_t g = 0; g < shape_.kv_heads; ++g) {
      std::memset(keys_.data() + page * key_page_bytes() + (g * 16 + slot) * row_bytes(shape_.format.key), 0xff, row_bytes(shape_.format.key));
      std::memset(values_.data() + page * value_page_bytes() + (g * 16 + slot) * row_bytes(shape_.format.value), 0xff,
                  row_bytes(shape_.format.value));
      if (shape_.format.value == DType::u4) {
        std::memset(values_.data() + page * value_page_bytes() + shape_.kv_heads * 16 * row_bytes(DType::u4) + (g * 16 + slot) * 4, 0xff, 4);
      }
    }
  }

  // Fused rows [q | k | v]; k and v are what the cache reads back, for sequences with nothing cached before, else NaN.
  void fill_rows() {
    const std::int64_t dim = shape_.head_dim;
    fused_.assign((rows_ + kPrefillSpareRows) * stride_, kPoison);
    for (const PrefillSequence& s : sequences_) {
      for (std::int64_t i = 0; i < s.rows; ++i) {
        std::uint16_t* row = fused_.data() + (s.first_row + i) * stride_;
        for (std::int64_t e = 0; e < heads_ * dim; ++e) {
          row[e] = random_16(random_u64(seed_ ^ 29, (s.first_row + i) * stride_ + e));
          if (shape_.query_size != 1) row[e] = rounded(static_cast<float>(number(row[e])) * shape_.query_size);
        }
        if (s.rows != s.context || !is_judged(s)) continue;
        if (shape_.written) {
          for (std::int64_t e = heads_ * dim; e < stride_; ++e) row[e] = random_16(random_u64(seed_ ^ 31, (s.first_row + i) * stride_ + e));
          continue;
        }
        for (std::int64_t g = 0; g < shape_.kv_heads; ++g) {
          for (std::int64_t d = 0; d < dim; ++d) {
            row[(heads_ + g) * dim + d] = rounded(static_cast<float>(key(s, g, i, d)));
            row[(heads_ + shape_.kv_heads + g) * dim + d] = rounded(static_cast<float>(value(s, g, i, d)));
          }
        }
      }
    }
  }

  std::int64_t row_bytes(DType type) const { return shape_.head_dim * bits(type) / 8; }
  std::int64_t key_page_bytes() const { return shape_.kv_heads * 16 * row_bytes(shape_.format.key); }
  std::int64_t value_page_bytes() const {
    return shape_.kv_heads * 16 * (row_bytes(shape_.format.value) + (shape_.format.value == DType::u4 ? 4 : 0));
  }

  // One stored element, times its scale. Token-major rows of a (page, head) block, whose 16-byte chunks are exchanged.
  double element(const std::vector<std::byte>& storage, std::int64_t page_bytes, DType type, const PrefillSequence& s, std::int64_t g,
                 std::int64_t token, std::int64_t d, const std::vector<float>& scales) const {
    const std::int64_t page = table_[s.table_row * table_stride_ + token / 16], slot = token % 16, row = row_bytes(type);
    const std::int64_t chunks = row / 16;
    std::int64_t exchanged = 1;
    while (exchanged < 8 && chunks % (2 * exchanged) == 0) exchanged *= 2;
    const std::int64_t bit = d * bits(type);
    const std::int64_t chunk = (bit / 128) ^ (slot * exchanged / 8 % exchanged);
    const std::byte* at = storage.data() + page * page_bytes + (g * 16 + slot) * row + chunk * 16 + bit % 128 / 8;
    if (type == DType::e4m3) return static_cast<double>(to_float(E4m3(*at))) * scales[g];
    if (type == DType::u4) {
      std::uint16_t parameters[2];
      std::memcpy(parameters, storage.data() + page * page_bytes + shape_.kv_heads * 16 * row + (g * 16 + slot) * 4, 4);
      const int code = (static_cast<int>(*at) >> (d % 2 * 4)) & 15;
      return to_float(Half(parameters[1])) + static_cast<double>(to_float(Half(parameters[0]))) * code;
    }
    std::uint16_t two;
    std::memcpy(&two, at, 2);
    return number(two);
  }
  double key(const PrefillSequence& s, std::int64_t g, std::int64_t token, std::int64_t d) const {
    return element(keys_, key_page_bytes(), shape_.format.key, s, g, token, d, key_scales_);
  }
  double value(const PrefillSequence& s, std::int64_t g, std::int64_t token, std::int64_t d) const {
    return element(values_, value_page_bytes(), shape_.format.value, s, g, token, d, value_scales_);
  }

  struct CacheHead {
    std::vector<double> keys, values;  // [context][head_dim], as read
  };
  CacheHead read_head(const PrefillSequence& s, std::int64_t g, CacheValues values) const {
    const auto as_read = [&](double x) { return values == CacheValues::exact ? x : number(rounded(static_cast<float>(x))); };
    CacheHead head;
    for (std::int64_t t = 0; t < s.context; ++t) {
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        head.keys.push_back(as_read(key(s, g, t, d)));
        head.values.push_back(as_read(value(s, g, t, d)));
      }
    }
    return head;
  }

  void judge_row(const std::vector<std::uint16_t>& out, const PrefillSequence& s, std::int64_t row, std::int64_t head, const CacheHead& cache,
                 double p_unit, bool widened_u4, Verdict& verdict) const {
    const std::int64_t dim = shape_.head_dim, seen = s.context - s.rows + row + 1;
    std::vector<double> q(dim);
    for (std::int64_t d = 0; d < dim; ++d) q[d] = number(fused_[(s.first_row + row) * stride_ + head * dim + d]);
    std::vector<double> p(seen);
    double most = -1e300, size = 0;
    for (std::int64_t t = 0; t < seen; ++t) {
      double score = 0, magnitude = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        const double product = q[d] * cache.keys[t * dim + d];
        score += product;
        magnitude += std::abs(product);
      }
      p[t] = score * softmax_scale();
      most = std::max(most, p[t]);
      size = std::max(size, magnitude * softmax_scale());
    }
    double total = 0;
    for (double& x : p) total += x = std::exp(x - most);
    std::vector<double> exact(dim, 0), weight(dim, 0), plain(dim, 0);
    for (std::int64_t t = 0; t < seen; ++t) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const double v = cache.values[t * dim + d];
        exact[d] += p[t] / total * v;
        weight[d] += p[t] / total * std::abs(v);
        plain[d] += std::abs(v);
      }
    }
    for (std::int64_t d = 0; d < dim; ++d) {
      const double bound = (p_unit + (widened_u4 ? 0x1p-11 : 0) + 0x1p-18 + 0x1p-20 * size) * weight[d] +  // P, a widened u4, scores
                           0x1p-25 * plain[d] / total +                                                    // P below f16's normals
                           unit() * std::abs(exact[d]) * 1.01 + 0x1p-24;                                   // the output
      const double error = std::abs(number(out[(s.first_row + row) * out_stride_ + head * dim + d]) - exact[d]);
      if (!(error / bound <= verdict.worst)) {
        verdict.worst = error / bound;
        verdict.where = "context " + std::to_string(s.context) + ", row " + std::to_string(row) + " of " + std::to_string(s.rows) + ", head " +
                        std::to_string(head) + ", dim " + std::to_string(d);
      }
      verdict.wrong += !(error <= bound);
    }
  }

  template <class T, class U>
  static void copy(DeviceBuffer<T>& to, const U* from, std::size_t count) {
    static_assert(sizeof(T) == 1 || sizeof(T) == sizeof(U));
    check(cudaMemcpy(to.data(), from, count * sizeof(U), cudaMemcpyHostToDevice), "test data");
    check(cudaDeviceSynchronize(), "test data");  // a copy from pageable memory may still be under way
  }
  void upload() {
    device_keys_ = DeviceBuffer<std::byte>(keys_.size(), "keys");
    device_values_ = DeviceBuffer<std::byte>(values_.size(), "values");
    device_key_scales_ = DeviceBuffer<float>(key_scales_.size(), "scales");
    device_value_scales_ = DeviceBuffer<float>(value_scales_.size(), "scales");
    device_table_ = DeviceBuffer<std::int32_t>(table_.size(), "a page table");
    device_rows_ = DeviceBuffer<std::byte>(fused_.size() * 2, "rows");
    device_out_ = DeviceBuffer<std::byte>(rows_ * out_stride_ * 2, "the output");
    copy(device_keys_, keys_.data(), keys_.size());
    copy(device_values_, values_.data(), values_.size());
    copy(device_key_scales_, key_scales_.data(), key_scales_.size());
    copy(device_value_scales_, value_scales_.data(), value_scales_.size());
    copy(device_rows_, fused_.data(), fused_.size());
    upload_table();
  }

  // By the kernel that steps use, which leaves in the rows what the pages read back as.
  void write_pages() {
    std::vector<std::int64_t> slots(rows_, -1);
    for (const PrefillSequence& s : sequences_) {
      for (std::int64_t i = 0; i < s.rows; ++i) slots[s.first_row + i] = table_[s.table_row * table_stride_ + i / 16] * std::int64_t{16} + i % 16;
    }
    DeviceBuffer<std::int64_t> device_slots(slots.size(), "slots");
    DeviceBuffer<std::int32_t> positions(slots.size(), "positions");
    DeviceBuffer<float> turns(2, "an empty rotary table");
    copy(device_slots, slots.data(), slots.size());
    check(cudaMemset(positions.data(), 0, positions.bytes()), "positions");
    auto* rows = reinterpret_cast<std::uint16_t*>(device_rows_.data());
    rope_write(nullptr, {.dtype = shape_.dtype, .q = rows, .k = rows + heads_ * shape_.head_dim, .v = rows + (heads_ + shape_.kv_heads) * shape_.head_dim,
                         .stride = stride_, .tokens = rows_, .heads = heads_, .rotary_dim = 0, .pairs = RopePairs::half, .rope_table = turns.data(),
                         .positions = positions.data(), .slots = device_slots.data(), .kv = args().kv, .round = true});
    check(cudaMemcpy(keys_.data(), device_keys_.data(), keys_.size(), cudaMemcpyDeviceToHost), "the pages");
    check(cudaMemcpy(values_.data(), device_values_.data(), values_.size(), cudaMemcpyDeviceToHost), "the pages");
  }

  PrefillShape shape_;
  std::int64_t heads_, stride_, out_stride_;
  KvLayout layout_;
  std::uint64_t seed_;
  std::int64_t pages_ = 0, table_stride_ = 0, rows_ = 0;
  std::int32_t nobodys_page_ = 0;
  std::vector<std::byte> keys_, values_;
  std::vector<float> key_scales_, value_scales_;
  std::vector<std::int32_t> table_;
  std::vector<PrefillSequence> sequences_;
  std::vector<std::uint16_t> fused_;
  DeviceBuffer<std::byte> device_keys_, device_values_, device_rows_, device_out_;
  DeviceBuffer<float> device_key_scales_, device_value_scales_;
  DeviceBuffer<std::int32_t> device_table_;
};

}  // namespace keel::cuda
