#include "kv/pool.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"
#include "base/option_error.h"

namespace keel {
namespace {

std::int64_t pages_or_fail(const KvLayout& layout, std::int64_t pool_bytes) {
  const std::int64_t pages = layout.pages_in(pool_bytes);
  if (pages < 1) {
    fail("a KV cache of {} ({} bytes) is too small for one page of {} tokens, which takes {} bytes in {}",
         format_bytes(pool_bytes), pool_bytes, layout.geometry().page_size, layout.page_bytes(), to_string(layout.format()));
  }
  if (pages > INT32_MAX) refuse_option("a KV cache of {} pages of {} tokens: at most {} are addressable", pages, layout.geometry().page_size, INT32_MAX);
  return pages;
}

}  // namespace

void copy_host_memory(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

KvPool::KvPool(const KvLayout& layout, KvScales scales, std::int64_t pool_bytes, PageMemory memory)
    : layout_(layout),
      scales_(std::move(scales)),
      pages_(pages_or_fail(layout, pool_bytes)),
      memory_(memory),
      key_bytes_(layout.geometry().layers * pages_ * layout.key_page_bytes()),
      value_bytes_(layout.geometry().layers * pages_ * layout.value_page_bytes()) {
  keys_ = static_cast<std::byte*>(memory_.allocate(key_bytes_, "the key cache"));
  try {
    values_ = static_cast<std::byte*>(memory_.allocate(value_bytes_, "the value cache"));
    page_.resize(pages_);  // after what is larger: a size that cannot be has then been refused
    free_.reserve(pages_);
  } catch (...) {
    memory_.release(keys_, key_bytes_);
    memory_.release(values_, value_bytes_);
    throw;
  }
  for (std::int64_t page = pages_ - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
}

KvPool::~KvPool() {
  memory_.release(keys_, key_bytes_);
  memory_.release(values_, value_bytes_);
}

KvLayerView KvPool::layer(std::int64_t index) {
  const std::int64_t heads = layout_.geometry().kv_heads;
  return {.layout = &layout_,
          .keys = keys_ + index * pages_ * layout_.key_page_bytes(),
          .values = values_ + index * pages_ * layout_.value_page_bytes(),
          .key_scales = scales_.keys.data() + index * heads,
          .value_scales = scales_.values.data() + index * heads};
}

void KvPool::read_page(std::int64_t index, PageId page, std::span<std::byte> keys, std::span<std::byte> values) {
  const KvLayerView view = layer(index);
  check(page >= 0 && page < pages_ && static_cast<std::int64_t>(keys.size()) == layout_.key_page_bytes() &&
            static_cast<std::int64_t>(values.size()) == layout_.value_page_bytes(),
        "one page's bytes");
  memory_.copy(keys.data(), view.key_page(page), keys.size());
  memory_.copy(values.data(), view.value_page(page), values.size());
}

void KvPool::write_page(std::int64_t index, PageId page, std::span<const std::byte> keys, std::span<const std::byte> values) {
  const KvLayerView view = layer(index);
  check(page >= 0 && page < pages_ && static_cast<std::int64_t>(keys.size()) == layout_.key_page_bytes() &&
            static_cast<std::int64_t>(values.size()) == layout_.value_page_bytes(),
        "one page's bytes");
  memory_.copy(view.key_page(page), keys.data(), keys.size());
  memory_.copy(view.value_page(page), values.data(), values.size());
}

std::int64_t KvPool::available() const { return static_cast<std::int64_t>(free_.size() + cached_order_.size()); }

std::optional<PageId> KvPool::allocate() {
  PageId page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (!cached_order_.empty()) {
    page = cached_order_.front();
    cached_order_.pop_front();
    unpublish(page);
  } else {
    return std::nullopt;
  }
  page_[page].references = 1;
  return page;
}

void KvPool::retain(PageId page) {
  Page& state = page_[page];
  if (state.references == 0) {
    check(state.published, "retain of a free page");
    cached_order_.erase(state.cached_at);
  }
  ++state.references;
}

void KvPool::release(PageId page) {
  Page& state = page_[page];
  check(state.references > 0, "release of a page that nobody holds");
  if (--state.references > 0) return;
  if (state.published) {
    state.cached_at = cached_order_.insert(cached_order_.end(), page);
  } else {
    free_.push_back(page);
  }
}

void KvPool::publish(PageId page, const Digest& hash) {
  Page& state = page_[page];
  check(state.references > 0, "publish of a page that nobody holds");
  if (state.published || !by_hash_.emplace(hash, page).second) return;  // an equal page is already findable
  state.published = true;
  state.hash = hash;
}

std::optional<PageId> KvPool::find(const Digest& hash) {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return std::nullopt;
  retain(found->second);
  return found->second;
}

void KvPool::unpublish(PageId page) {
  by_hash_.erase(page_[page].hash);
  page_[page].published = false;
}

void KvPool::clear_cached() {
  for (const auto& [hash, page] : by_hash_) page_[page].published = false;
  by_hash_.clear();
  free_.insert(free_.end(), cached_order_.begin(), cached_order_.end());
  cached_order_.clear();
}

std::size_t KvPool::DigestHash::operator()(const Digest& digest) const {
  std::size_t word;
  std::memcpy(&word, digest.data(), sizeof(word));
  return word;
}

Digest prefix_root(const KvLayout& layout, const KvScales& scales, std::string_view salt) {
  const Digest of_scales = scales.digest();
  std::string text = fmt::format("keel prefix 1\n{}\n{}\n", to_string(layout.format()), layout.geometry().page_size);
  text.append(reinterpret_cast<const char*>(of_scales.data()), of_scales.size());
  text.append(salt);
  return sha256(text);
}

Digest prefix_hash(const Digest& previous, std::span<const std::int32_t> tokens) {
  std::string text(reinterpret_cast<const char*>(previous.data()), previous.size());
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return sha256(text);
}

}  // namespace keel
